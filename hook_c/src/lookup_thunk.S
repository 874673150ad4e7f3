// SPDX-License-Identifier: Apache-2.0
/* dlsym and dlvsym, as the program sees them.
 *
 * The real ones take their caller from the return address (RTLD_NEXT means "behind the object that
 * calls me"). A wrapper in C would make this library the caller of every look-up of the process.
 * So: ask lookup.c whether it has an answer; if not, jump to the real function with every argument
 * and the return address as they came. */

#if defined(__x86_64__)

	.macro THUNK name, chooser, next
	.globl	\name
	.type	\name, @function
	.p2align 4
\name:
	.cfi_startproc
	endbr64
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	call	\chooser		/* struct lookup_answer in rax and rdx */
	movq	%rdx, %rcx
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testq	%rcx, %rcx
	jz	1f
	ret
1:	jmp	*\next(%rip)
	.cfi_endproc
	.size	\name, . - \name
	.endm

#elif defined(__aarch64__)

	.macro THUNK name, chooser, next
	.globl	\name
	.type	\name, %function
	.p2align 4
\name:
	.cfi_startproc
	hint	#34			/* bti c */
	stp	x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset x29, -48
	.cfi_offset x30, -40
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	str	x2, [sp, #32]
	bl	\chooser		/* struct lookup_answer in x0 and x1 */
	mov	x3, x0
	mov	x4, x1
	ldp	x0, x1, [sp, #16]
	ldr	x2, [sp, #32]
	ldp	x29, x30, [sp], #48
	.cfi_def_cfa_offset 0
	.cfi_restore x29
	.cfi_restore x30
	cbz	x4, 1f
	mov	x0, x3
	ret
1:	adrp	x16, \next
	ldr	x16, [x16, #:lo12:\next]
	br	x16
	.cfi_endproc
	.size	\name, . - \name
	.endm

#else
#error "no dlsym thunk for this architecture"
#endif

	.text
	THUNK dlsym, lookup_dlsym, lookup_next_dlsym
	THUNK dlvsym, lookup_dlvsym, lookup_next_dlvsym

	.section .note.GNU-stack, "", %progbits
