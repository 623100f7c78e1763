CREATE TABLE `message` (
          `id` text PRIMARY KEY,
          `session_id` text NOT NULL,
          `time_created` integer NOT NULL,
          `time_updated` integer NOT NULL,
          `data` text NOT NULL,
          CONSTRAINT `fk_message_session_id_session_id_fk` FOREIGN KEY (`session_id`) REFERENCES `session`(`id`) ON DELETE CASCADE
        );
CREATE TABLE `part` (
          `id` text PRIMARY KEY,
          `message_id` text NOT NULL,
          `session_id` text NOT NULL,
          `time_created` integer NOT NULL,
          `time_updated` integer NOT NULL,
          `data` text NOT NULL,
          CONSTRAINT `fk_part_message_id_message_id_fk` FOREIGN KEY (`message_id`) REFERENCES `message`(`id`) ON DELETE CASCADE
        );
CREATE TABLE `session` (
          `id` text PRIMARY KEY,
          `project_id` text NOT NULL,
          `workspace_id` text,
          `parent_id` text,
          `slug` text NOT NULL,
          `directory` text NOT NULL,
          `path` text,
          `title` text NOT NULL,
          `version` text NOT NULL,
          `share_url` text,
          `summary_additions` integer,
          `summary_deletions` integer,
          `summary_files` integer,
          `summary_diffs` text,
          `metadata` text,
          `cost` real DEFAULT 0 NOT NULL,
          `tokens_input` integer DEFAULT 0 NOT NULL,
          `tokens_output` integer DEFAULT 0 NOT NULL,
          `tokens_reasoning` integer DEFAULT 0 NOT NULL,
          `tokens_cache_read` integer DEFAULT 0 NOT NULL,
          `tokens_cache_write` integer DEFAULT 0 NOT NULL,
          `revert` text,
          `permission` text,
          `agent` text,
          `model` text,
          `time_created` integer NOT NULL,
          `time_updated` integer NOT NULL,
          `time_compacting` integer,
          `time_archived` integer,
          CONSTRAINT `fk_session_project_id_project_id_fk` FOREIGN KEY (`project_id`) REFERENCES `project`(`id`) ON DELETE CASCADE
        );
INSERT INTO session VALUES ('ses_df70bc3e1ffe2BlTniw8uGT78z','35325b9e1c2f09638da94d3555759f33d30c23be',NULL,NULL,'stellar-knight','/home/dev/work','','t','1.18.33',NULL,0,0,0,NULL,NULL,0.0,300,27,0,60,0,NULL,'[{"permission":"question","pattern":"*","action":"deny"},{"permission":"plan_enter","pattern":"*","action":"deny"},{"permission":"plan_exit","pattern":"*","action":"deny"}]','build','{"id":"m","providerID":"scripted","variant":"default"}',1795446553639,1795446584071,NULL,NULL);
INSERT INTO message VALUES ('msg_208f43d6f0019WOP3wosLc58pF','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446553967,1795446568790,'{"role":"user","time":{"created":1795446553967},"agent":"build","model":{"providerID":"scripted","modelID":"m"},"summary":{"diffs":[]}}');
INSERT INTO message VALUES ('msg_208f451e6001mPJhTF5D5JB2fi','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446559206,1795446568437,'{"parentID":"msg_208f43d6f0019WOP3wosLc58pF","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/home/dev/work","root":"/home/dev/work"},"cost":0,"tokens":{"total":129,"input":100,"output":9,"reasoning":0,"cache":{"write":0,"read":20}},"modelID":"m","providerID":"scripted","time":{"created":1795446559206,"completed":1795446568431},"finish":"tool-calls"}');
INSERT INTO message VALUES ('msg_208f4760400195ivt42SZeaSNb','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446568452,1795446569259,'{"parentID":"msg_208f43d6f0019WOP3wosLc58pF","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/home/dev/work","root":"/home/dev/work"},"cost":0,"tokens":{"total":129,"input":100,"output":9,"reasoning":0,"cache":{"write":0,"read":20}},"modelID":"m","providerID":"scripted","time":{"created":1795446568452,"completed":1795446569257},"finish":"stop"}');
INSERT INTO message VALUES ('msg_208f49565001Euy7V00v9hnTaX','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446576486,1795446580257,'{"role":"user","time":{"created":1795446576486},"agent":"build","model":{"providerID":"scripted","modelID":"m"},"summary":{"diffs":[]}}');
INSERT INTO message VALUES ('msg_208f4a2b00016K7wFcLF2d4c27','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446579888,1795446584041,'{"parentID":"msg_208f49565001Euy7V00v9hnTaX","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/home/dev/work","root":"/home/dev/work"},"cost":0,"tokens":{"total":129,"input":100,"output":9,"reasoning":0,"cache":{"write":0,"read":20}},"modelID":"m","providerID":"scripted","time":{"created":1795446579888,"completed":1795446584040},"finish":"stop"}');
INSERT INTO part VALUES ('prt_208f43d87001QJ57yt3C9jmaUq','msg_208f43d6f0019WOP3wosLc58pF','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446558905,1795446558909,'{"type":"text","text":"\"alpha: run the command\""}');
INSERT INTO part VALUES ('prt_208f46d730012FWbDvBc8mi9j9','msg_208f451e6001mPJhTF5D5JB2fi','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446566259,1795446566278,'{"snapshot":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","type":"step-start"}');
INSERT INTO part VALUES ('prt_208f46d99001E9gKPvj4gfxcBF','msg_208f451e6001mPJhTF5D5JB2fi','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446566297,1795446567325,'{"type":"tool","tool":"bash","callID":"call_1","state":{"status":"completed","input":{"command":"echo tool-marker","description":"Runs a command"},"output":"tool-marker\n","metadata":{"output":"tool-marker\n","exit":0,"truncated":false},"title":"echo tool-marker","time":{"start":1795446566337,"end":1795446567177}}}');
INSERT INTO part VALUES ('prt_208f473d3001TBsirZK43ZxR8a','msg_208f451e6001mPJhTF5D5JB2fi','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446567892,1795446567925,'{"reason":"tool-calls","snapshot":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","type":"step-finish","tokens":{"total":129,"input":100,"output":9,"reasoning":0,"cache":{"write":0,"read":20}},"cost":0}');
INSERT INTO part VALUES ('prt_208f476dc001FdTTaUX5EiETdx','msg_208f4760400195ivt42SZeaSNb','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446568669,1795446568675,'{"snapshot":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","type":"step-start"}');
INSERT INTO part VALUES ('prt_208f476f3001ZiURrsKYNdPlSt','msg_208f4760400195ivt42SZeaSNb','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446568692,1795446568754,'{"type":"text","text":"answer-one","time":{"start":1795446568692,"end":1795446568748}}');
INSERT INTO part VALUES ('prt_208f4786700195lz7adB6ltEr5','msg_208f4760400195ivt42SZeaSNb','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446569063,1795446569069,'{"reason":"stop","snapshot":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","type":"step-finish","tokens":{"total":129,"input":100,"output":9,"reasoning":0,"cache":{"write":0,"read":20}},"cost":0}');
INSERT INTO part VALUES ('prt_208f49581001dy1O1tA95J0dOW','msg_208f49565001Euy7V00v9hnTaX','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446579813,1795446579821,'{"type":"text","text":"\"beta: and which word was it\""}');
INSERT INTO part VALUES ('prt_208f4b177001bzoJ06f1etlNDU','msg_208f4a2b00016K7wFcLF2d4c27','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446583671,1795446583674,'{"snapshot":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","type":"step-start"}');
INSERT INTO part VALUES ('prt_208f4b17e001q8O5NF54YtDQY2','msg_208f4a2b00016K7wFcLF2d4c27','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446583678,1795446583705,'{"type":"text","text":"answer-two","time":{"start":1795446583678,"end":1795446583695}}');
INSERT INTO part VALUES ('prt_208f4b258001AUXRurMAva9ULV','msg_208f4a2b00016K7wFcLF2d4c27','ses_df70bc3e1ffe2BlTniw8uGT78z',1795446583897,1795446583899,'{"reason":"stop","snapshot":"4b825dc642cb6eb9a060e54bf8d69288fbee4904","type":"step-finish","tokens":{"total":129,"input":100,"output":9,"reasoning":0,"cache":{"write":0,"read":20}},"cost":0}');
