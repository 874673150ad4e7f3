-- A state database of schema version 1, as the first version wrote it.
PRAGMA application_id = 1984385109;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE card (
            uuid TEXT PRIMARY KEY,
            node_name TEXT NOT NULL,
            kind TEXT NOT NULL,
            model TEXT NOT NULL,
            memory_bytes INTEGER NOT NULL,
            slots INTEGER NOT NULL,
            healthy INTEGER NOT NULL,
            health_reason TEXT NOT NULL,
            parent_uuid TEXT NOT NULL,
            numa_node INTEGER NOT NULL
        ) STRICT
        ;
INSERT INTO "card" VALUES('GPU-1111','node-a','gpu','NVIDIA H100 80GB HBM3',8589934592,10,1,'','',0);
INSERT INTO "card" VALUES('GPU-2222','node-a','gpu','NVIDIA H100 80GB HBM3',8589934592,10,0,'Xid 79','',0);
INSERT INTO "card" VALUES('MIG-3333','node-a','mig','NVIDIA H100 MIG 1g.10gb',10737418240,1,1,'','GPU-3333',1);
CREATE TABLE claim (
            allocation_id TEXT PRIMARY KEY,
            node_name TEXT NOT NULL,
            runtime_root TEXT NOT NULL,
            container_id TEXT NOT NULL,
            state TEXT NOT NULL,
            since_unix_ns INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            account_id TEXT NOT NULL,
            source_dialect TEXT NOT NULL,
            whole_cards INTEGER NOT NULL,
            exclusive INTEGER NOT NULL,
            request TEXT
        ) STRICT
        ;
INSERT INTO "claim" VALUES('0d6f3d0a-5c52-4b27-9d6e-2f0a3d0c7a09','node-a','/run/runc','lost','running',1700000000000000000,0,'','local',0,0,NULL);
INSERT INTO "claim" VALUES('0d6f3d0a-5c52-4b27-9d6e-2f0a3d0c7a01','node-a','/var/run/docker/runtime-runc/moby','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','running',1700000002000000000,0,'','local',0,0,'{"count": 1, "memory": [{"bytes": 2147483648}], "cores_percent": [25], "compute_mode": null, "uuids": [], "models": [], "card_policy": null}');
INSERT INTO "claim" VALUES('0d6f3d0a-5c52-4b27-9d6e-2f0a3d0c7a02','node-a','','two','stopped',1700000004000000000,0,'','local',0,0,'{"count": 2, "memory": [{"percent": 50}, {"bytes": 3221225472}], "cores_percent": [], "compute_mode": "burst", "uuids": [], "models": ["h100", "!A100"], "card_policy": "spread"}');
CREATE TABLE node (
            name TEXT PRIMARY KEY,
            ready INTEGER NOT NULL,
            boot_id TEXT NOT NULL,
            agent_version TEXT NOT NULL
        ) STRICT
        ;
INSERT INTO "node" VALUES('node-a',1,'b1','0.1.0');
CREATE TABLE slice (
            allocation_id TEXT NOT NULL,
            position INTEGER NOT NULL,
            card_uuid TEXT NOT NULL,
            memory_bytes INTEGER NOT NULL,
            virtual_memory_bytes INTEGER NOT NULL,
            cores_percent INTEGER NOT NULL,
            reserved_percent INTEGER NOT NULL,
            cores_max_percent INTEGER NOT NULL,
            compute_mode TEXT NOT NULL,
            priority INTEGER NOT NULL,
            weight INTEGER NOT NULL,
            PRIMARY KEY (allocation_id, position)
        ) STRICT, WITHOUT ROWID
        ;
INSERT INTO "slice" VALUES('0d6f3d0a-5c52-4b27-9d6e-2f0a3d0c7a01',0,'GPU-1111',2147483648,0,25,25,25,'hard',0,25);
INSERT INTO "slice" VALUES('0d6f3d0a-5c52-4b27-9d6e-2f0a3d0c7a02',0,'MIG-3333',5368709120,0,100,0,100,'burst',0,1);
INSERT INTO "slice" VALUES('0d6f3d0a-5c52-4b27-9d6e-2f0a3d0c7a02',1,'GPU-1111',3221225472,0,100,0,100,'burst',0,1);
INSERT INTO "slice" VALUES('0d6f3d0a-5c52-4b27-9d6e-2f0a3d0c7a09',0,'GPU-2222',1073741824,0,20,20,20,'hard',0,20);
COMMIT;
