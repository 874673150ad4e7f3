from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CARD_KIND_GPU: CardKind
CARD_KIND_MIG: CardKind
CARD_KIND_UNSPECIFIED: CardKind
CARD_POLICY_BINPACK: CardPolicy
CARD_POLICY_EXCLUSIVE: CardPolicy
CARD_POLICY_SPREAD: CardPolicy
CARD_POLICY_UNSPECIFIED: CardPolicy
CLAIM_STATE_BOUND: ClaimState
CLAIM_STATE_ORPHAN: ClaimState
CLAIM_STATE_RELEASED: ClaimState
CLAIM_STATE_RUNNING: ClaimState
CLAIM_STATE_STOPPED: ClaimState
CLAIM_STATE_UNSPECIFIED: ClaimState
COMPUTE_MODE_BURST: ComputeMode
COMPUTE_MODE_HARD: ComputeMode
COMPUTE_MODE_UNSPECIFIED: ComputeMode
DESCRIPTOR: _descriptor.FileDescriptor
ISOLATION_STATE_ENFORCED: IsolationState
ISOLATION_STATE_REFUSED: IsolationState
ISOLATION_STATE_UNSPECIFIED: IsolationState

class AllocateRequest(_message.Message):
    __slots__ = ["claim", "node_name", "request", "spare_stopped"]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SPARE_STOPPED_FIELD_NUMBER: _ClassVar[int]
    claim: ClaimKey
    node_name: str
    request: AllocationRequest
    spare_stopped: bool
    def __init__(self, claim: _Optional[_Union[ClaimKey, _Mapping]] = ..., node_name: _Optional[str] = ..., request: _Optional[_Union[AllocationRequest, _Mapping]] = ..., spare_stopped: bool = ...) -> None: ...

class AllocateResponse(_message.Message):
    __slots__ = ["allocation", "taken_allocation_ids"]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_ALLOCATION_IDS_FIELD_NUMBER: _ClassVar[int]
    allocation: Allocation
    taken_allocation_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, allocation: _Optional[_Union[Allocation, _Mapping]] = ..., taken_allocation_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Allocation(_message.Message):
    __slots__ = ["account_id", "allocation_id", "claim", "epoch", "exclusive", "node_name", "pod", "slices", "source_dialect", "whole_cards"]
    ACCOUNT_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DIALECT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_CARDS_FIELD_NUMBER: _ClassVar[int]
    account_id: str
    allocation_id: str
    claim: ClaimKey
    epoch: int
    exclusive: bool
    node_name: str
    pod: PodIdentity
    slices: _containers.RepeatedCompositeFieldContainer[Slice]
    source_dialect: str
    whole_cards: bool
    def __init__(self, allocation_id: _Optional[str] = ..., epoch: _Optional[int] = ..., slices: _Optional[_Iterable[_Union[Slice, _Mapping]]] = ..., account_id: _Optional[str] = ..., source_dialect: _Optional[str] = ..., node_name: _Optional[str] = ..., pod: _Optional[_Union[PodIdentity, _Mapping]] = ..., claim: _Optional[_Union[ClaimKey, _Mapping]] = ..., whole_cards: bool = ..., exclusive: bool = ...) -> None: ...

class AllocationRequest(_message.Message):
    __slots__ = ["card_policy", "compute_mode", "cores_percent", "count", "memory", "models", "uuids"]
    CARD_POLICY_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MODE_FIELD_NUMBER: _ClassVar[int]
    CORES_PERCENT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    UUIDS_FIELD_NUMBER: _ClassVar[int]
    card_policy: CardPolicy
    compute_mode: ComputeMode
    cores_percent: _containers.RepeatedScalarFieldContainer[int]
    count: int
    memory: _containers.RepeatedCompositeFieldContainer[MemoryAmount]
    models: _containers.RepeatedScalarFieldContainer[str]
    uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, count: _Optional[int] = ..., memory: _Optional[_Iterable[_Union[MemoryAmount, _Mapping]]] = ..., cores_percent: _Optional[_Iterable[int]] = ..., compute_mode: _Optional[_Union[ComputeMode, str]] = ..., uuids: _Optional[_Iterable[str]] = ..., models: _Optional[_Iterable[str]] = ..., card_policy: _Optional[_Union[CardPolicy, str]] = ...) -> None: ...

class Card(_message.Message):
    __slots__ = ["health_reason", "healthy", "kind", "memory_bytes", "minor", "model", "numa_node", "parent_uuid", "slots", "uuid"]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    HEALTH_REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    PARENT_UUID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    health_reason: str
    healthy: bool
    kind: CardKind
    memory_bytes: int
    minor: int
    model: str
    numa_node: int
    parent_uuid: str
    slots: int
    uuid: str
    def __init__(self, uuid: _Optional[str] = ..., kind: _Optional[_Union[CardKind, str]] = ..., model: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., slots: _Optional[int] = ..., healthy: bool = ..., health_reason: _Optional[str] = ..., parent_uuid: _Optional[str] = ..., numa_node: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class CardState(_message.Message):
    __slots__ = ["card", "held_memory_bytes", "held_percent", "held_slots", "owner_dialect", "refusal"]
    CARD_FIELD_NUMBER: _ClassVar[int]
    HELD_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_PERCENT_FIELD_NUMBER: _ClassVar[int]
    HELD_SLOTS_FIELD_NUMBER: _ClassVar[int]
    OWNER_DIALECT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    card: Card
    held_memory_bytes: int
    held_percent: int
    held_slots: int
    owner_dialect: str
    refusal: str
    def __init__(self, card: _Optional[_Union[Card, _Mapping]] = ..., held_memory_bytes: _Optional[int] = ..., held_percent: _Optional[int] = ..., held_slots: _Optional[int] = ..., owner_dialect: _Optional[str] = ..., refusal: _Optional[str] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ["allocation", "since_unix_ns", "state"]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    allocation: Allocation
    since_unix_ns: int
    state: ClaimState
    def __init__(self, allocation: _Optional[_Union[Allocation, _Mapping]] = ..., state: _Optional[_Union[ClaimState, str]] = ..., since_unix_ns: _Optional[int] = ...) -> None: ...

class ClaimKey(_message.Message):
    __slots__ = ["container_id", "runtime_root"]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_ROOT_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    runtime_root: str
    def __init__(self, runtime_root: _Optional[str] = ..., container_id: _Optional[str] = ...) -> None: ...

class ContainerIsolation(_message.Message):
    __slots__ = ["allocation_id", "pod", "reason", "state"]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    allocation_id: str
    pod: PodIdentity
    reason: str
    state: IsolationState
    def __init__(self, pod: _Optional[_Union[PodIdentity, _Mapping]] = ..., allocation_id: _Optional[str] = ..., state: _Optional[_Union[IsolationState, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ["allocation_id", "card_uuid", "node_name", "pod", "request"]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    CARD_UUID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    allocation_id: str
    card_uuid: str
    node_name: str
    pod: PodIdentity
    request: AllocationRequest
    def __init__(self, card_uuid: _Optional[str] = ..., allocation_id: _Optional[str] = ..., request: _Optional[_Union[AllocationRequest, _Mapping]] = ..., pod: _Optional[_Union[PodIdentity, _Mapping]] = ..., node_name: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ["lines"]
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lines: _Optional[_Iterable[str]] = ...) -> None: ...

class ListAllocationsRequest(_message.Message):
    __slots__ = ["node_name"]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    def __init__(self, node_name: _Optional[str] = ...) -> None: ...

class ListAllocationsResponse(_message.Message):
    __slots__ = ["claims"]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    def __init__(self, claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ["node_name"]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    def __init__(self, node_name: _Optional[str] = ...) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ["nodes"]
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeState]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeState, _Mapping]]] = ...) -> None: ...

class MemoryAmount(_message.Message):
    __slots__ = ["bytes", "percent"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    percent: int
    def __init__(self, bytes: _Optional[int] = ..., percent: _Optional[int] = ...) -> None: ...

class NodeSnapshot(_message.Message):
    __slots__ = ["allocations"]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    allocations: _containers.RepeatedCompositeFieldContainer[Allocation]
    def __init__(self, allocations: _Optional[_Iterable[_Union[Allocation, _Mapping]]] = ...) -> None: ...

class NodeState(_message.Message):
    __slots__ = ["cards", "name", "ready"]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    cards: _containers.RepeatedCompositeFieldContainer[CardState]
    name: str
    ready: bool
    def __init__(self, name: _Optional[str] = ..., ready: bool = ..., cards: _Optional[_Iterable[_Union[CardState, _Mapping]]] = ...) -> None: ...

class PodIdentity(_message.Message):
    __slots__ = ["container_name", "name", "namespace", "uid"]
    CONTAINER_NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    container_name: str
    name: str
    namespace: str
    uid: str
    def __init__(self, uid: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., container_name: _Optional[str] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ["allocation_id"]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    allocation_id: str
    def __init__(self, allocation_id: _Optional[str] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ReportNodeRequest(_message.Message):
    __slots__ = ["agent_version", "boot_id", "cards", "claims", "isolation", "node_name", "ready", "running_allocation_ids", "served_resources", "whole_cards", "whole_cards_known"]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    CARDS_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_ALLOCATION_IDS_FIELD_NUMBER: _ClassVar[int]
    SERVED_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_CARDS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_CARDS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    agent_version: str
    boot_id: str
    cards: _containers.RepeatedCompositeFieldContainer[Card]
    claims: _containers.RepeatedCompositeFieldContainer[Claim]
    isolation: _containers.RepeatedCompositeFieldContainer[ContainerIsolation]
    node_name: str
    ready: bool
    running_allocation_ids: _containers.RepeatedScalarFieldContainer[str]
    served_resources: _containers.RepeatedScalarFieldContainer[str]
    whole_cards: _containers.RepeatedCompositeFieldContainer[WholeCards]
    whole_cards_known: bool
    def __init__(self, node_name: _Optional[str] = ..., cards: _Optional[_Iterable[_Union[Card, _Mapping]]] = ..., running_allocation_ids: _Optional[_Iterable[str]] = ..., claims: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ..., ready: bool = ..., boot_id: _Optional[str] = ..., agent_version: _Optional[str] = ..., isolation: _Optional[_Iterable[_Union[ContainerIsolation, _Mapping]]] = ..., served_resources: _Optional[_Iterable[str]] = ..., whole_cards: _Optional[_Iterable[_Union[WholeCards, _Mapping]]] = ..., whole_cards_known: bool = ...) -> None: ...

class ReportNodeResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ResolveRequest(_message.Message):
    __slots__ = ["container_uuid", "engine_container_id", "node_name", "pod"]
    CONTAINER_UUID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    container_uuid: str
    engine_container_id: str
    node_name: str
    pod: PodIdentity
    def __init__(self, container_uuid: _Optional[str] = ..., node_name: _Optional[str] = ..., pod: _Optional[_Union[PodIdentity, _Mapping]] = ..., engine_container_id: _Optional[str] = ...) -> None: ...

class ResolveResponse(_message.Message):
    __slots__ = ["allocation"]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    allocation: Allocation
    def __init__(self, allocation: _Optional[_Union[Allocation, _Mapping]] = ...) -> None: ...

class Slice(_message.Message):
    __slots__ = ["card_uuid", "compute_mode", "cores_max_percent", "cores_percent", "memory_bytes", "priority", "reserved_percent", "virtual_memory_bytes", "weight"]
    CARD_UUID_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MODE_FIELD_NUMBER: _ClassVar[int]
    CORES_MAX_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CORES_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RESERVED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    card_uuid: str
    compute_mode: ComputeMode
    cores_max_percent: int
    cores_percent: int
    memory_bytes: int
    priority: int
    reserved_percent: int
    virtual_memory_bytes: int
    weight: int
    def __init__(self, card_uuid: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., virtual_memory_bytes: _Optional[int] = ..., cores_percent: _Optional[int] = ..., reserved_percent: _Optional[int] = ..., cores_max_percent: _Optional[int] = ..., compute_mode: _Optional[_Union[ComputeMode, str]] = ..., priority: _Optional[int] = ..., weight: _Optional[int] = ...) -> None: ...

class WatchNodeRequest(_message.Message):
    __slots__ = ["node_name"]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    def __init__(self, node_name: _Optional[str] = ...) -> None: ...

class WatchNodeResponse(_message.Message):
    __slots__ = ["remove", "sequence", "snapshot", "upsert"]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    UPSERT_FIELD_NUMBER: _ClassVar[int]
    remove: str
    sequence: int
    snapshot: NodeSnapshot
    upsert: Allocation
    def __init__(self, sequence: _Optional[int] = ..., snapshot: _Optional[_Union[NodeSnapshot, _Mapping]] = ..., upsert: _Optional[_Union[Allocation, _Mapping]] = ..., remove: _Optional[str] = ...) -> None: ...

class WholeCards(_message.Message):
    __slots__ = ["card_uuids", "pod"]
    CARD_UUIDS_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    card_uuids: _containers.RepeatedScalarFieldContainer[str]
    pod: PodIdentity
    def __init__(self, pod: _Optional[_Union[PodIdentity, _Mapping]] = ..., card_uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class ComputeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CardPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CardKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ClaimState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class IsolationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
