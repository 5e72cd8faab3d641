-- Own error codes: KM001 state, KM002 immutable, KM003 not fit to be published, KM004 never deleted.
create extension if not exists btree_gist with schema public;

-- ---- which catalog this is: survives a dump and a restore, so that a warehouse knows its own

create table kinemill.identity (
  one boolean primary key default true check (one),
  id uuid not null default gen_random_uuid()
);
insert into kinemill.identity default values;

-- ---- names

create table kinemill.vendor (
  id integer generated always as identity primary key,
  name text not null unique check (length(name) between 1 and 400)
);
create table kinemill.robot (
  id integer generated always as identity primary key,
  name text not null unique check (length(name) between 1 and 400)
);
create table kinemill.task (
  id integer generated always as identity primary key,
  name text not null unique check (length(name) <= 400)
);
create table kinemill.topic_set (
  id integer generated always as identity primary key,
  sha256 bytea not null unique check (sha256 = sha256(convert_to(topics, 'UTF8'))),
  topics text not null
);
comment on table kinemill.topic_set is 'topic tables as JSON, one for all episodes of a robot';

-- ---- deliveries and runs

create table kinemill.delivery (
  id bigint generated always as identity primary key,
  vendor_id integer not null references kinemill.vendor,
  name text not null check (length(name) between 1 and 400),
  source_url text not null default '',
  files integer not null default 0 check (files >= 0),
  size_bytes bigint not null default 0 check (size_bytes >= 0),
  sha256 bytea check (length(sha256) = 32),
  details jsonb not null default '{}',
  received_at timestamptz not null default clock_timestamp(),
  unique (vendor_id, name)
);

create table kinemill.run (
  id bigint generated always as identity primary key,
  batch text not null unique check (length(batch) between 1 and 400),
  delivery_id bigint references kinemill.delivery,
  status text not null default 'running' check (status in ('running', 'success', 'degraded', 'failed')),
  plan jsonb not null default '{}',
  started_at timestamptz not null default clock_timestamp(),
  finished_at timestamptz,
  check ((status = 'running') = (finished_at is null))
);

create table kinemill.run_step (
  batch text not null check (length(batch) between 1 and 400),
  step text not null check (length(step) between 1 and 200),
  step_version integer not null check (step_version >= 0),
  input_digest text not null check (input_digest ~ '^[0-9a-f]{64}$'),
  state text not null check (state in ('claimed', 'ok', 'warn', 'failed', 'skipped')),
  attempts integer not null default 1 check (attempts >= 1),
  claimed_by text not null default '',
  claim_token uuid not null,
  lease_until timestamptz,
  output_digest text not null default '',
  seconds double precision not null default 0,
  counts jsonb not null default '{}',
  messages text[] not null default '{}',
  claimed_at timestamptz not null default clock_timestamp(),
  finished_at timestamptz,
  primary key (batch, step, step_version, input_digest),
  check ((state = 'claimed') = (finished_at is null)),
  check ((state = 'claimed') = (lease_until is not null))
);
comment on table kinemill.run_step is 'what was done, keyed by what it was done to; schedulers only cache this';

-- ---- episodes

create table kinemill.episode_transition (
  old_state text not null,
  new_state text not null,
  primary key (old_state, new_state)
);
insert into kinemill.episode_transition values
  ('ingested', 'validated'), ('validated', 'published'), ('published', 'retired'), ('validated', 'retired'),
  ('ingested', 'quarantined'), ('validated', 'quarantined'), ('published', 'quarantined'),
  ('quarantined', 'ingested'), ('quarantined', 'retired');

create table kinemill.episode (
  id uuid primary key,
  vendor_id integer not null references kinemill.vendor,
  vendor_key text not null check (length(vendor_key) between 1 and 600),
  delivery_id bigint references kinemill.delivery,
  batch text not null default '' check (length(batch) <= 400),
  robot_id integer not null references kinemill.robot,
  task_id integer not null references kinemill.task,
  instruction text not null default '' check (length(instruction) <= 20000),
  language text not null default '' check (length(language) <= 40),
  split text not null default 'train' check (length(split) between 1 and 40),
  site text not null default '' check (length(site) <= 400),
  t_first_ns bigint not null,
  duration_ns bigint not null check (duration_ns > 0),
  frames integer not null check (frames >= 0),
  fps real not null check (fps >= 0 and fps < 100000),
  frames_suspect boolean not null generated always as
    (abs(frames - duration_ns / 1e9 * fps) > greatest(2.0, 0.02 * frames)) stored,
  recorded_at timestamptz,
  ended_at timestamptz,
  state text not null default 'ingested'
    check (state in ('ingested', 'validated', 'published', 'quarantined', 'retired')),
  degraded_steps text[] not null default '{}',
  purged_at timestamptz,
  row_version integer not null default 1,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  unique (vendor_id, vendor_key),
  check ((frames = 0) = (fps = 0)),
  check (recorded_at < ended_at),
  check (purged_at is null or state = 'retired')
);
create index episode_state on kinemill.episode (state) where state <> 'published';
create index episode_batch on kinemill.episode (batch) where batch <> '';
create index episode_delivery on kinemill.episode (delivery_id);

create table kinemill.rendition (
  id bigint generated always as identity primary key,
  episode_id uuid not null references kinemill.episode,
  profile text not null check (profile ~ '^[a-z][a-z0-9_]{0,31}$'),
  object_key text not null unique,
  sha256 bytea not null check (length(sha256) = 32),
  size_bytes bigint not null check (size_bytes > 0),
  etag text,
  current boolean not null default true,
  gop_frames integer check (gop_frames > 0),
  topic_set_id integer not null references kinemill.topic_set,
  layout bytea not null,
  created_at timestamptz not null default clock_timestamp(),
  verified_at timestamptz,
  purged_at timestamptz,
  unique (id, size_bytes),
  constraint rendition_key_is_its_content check (object_key =
    'episodes/' || right(episode_id::text, 2) || '/' || episode_id::text || '/' || profile || '-'
    || left(encode(sha256, 'hex'), 12) || '.mcap'),
  check (verified_at is null or etag is not null)
);
create unique index rendition_current on kinemill.rendition (episode_id, profile) where current;
create unique index rendition_content on kinemill.rendition (sha256) where current;
create index rendition_episode on kinemill.rendition (episode_id);

create table kinemill.rendition_receipt (
  rendition_id bigint primary key references kinemill.rendition,
  receipt bytea not null
);
alter table kinemill.rendition_receipt alter column receipt set storage external;
comment on column kinemill.rendition_receipt.receipt is 'the whole receipt: canonical JSON, zlib';

create table kinemill.episode_group (
  rendition_id bigint not null,
  size_bytes bigint not null,
  name text not null check (length(name) between 1 and 100),
  byte_range int8range not null,
  messages bigint not null check (messages >= 0),
  t_first_ns bigint not null,
  t_last_ns bigint not null,
  primary key (rendition_id, name),
  foreign key (rendition_id, size_bytes) references kinemill.rendition (id, size_bytes),
  constraint group_inside_the_file check (
    not isempty(byte_range) and lower(byte_range) >= 0 and upper(byte_range) <= size_bytes
    and not lower_inf(byte_range) and not upper_inf(byte_range)),
  check (t_first_ns <= t_last_ns),
  constraint groups_do_not_overlap exclude using gist (rendition_id with =, byte_range with &&)
);

create table kinemill.quality_result (
  id bigint generated always as identity primary key,
  episode_id uuid not null references kinemill.episode,
  rendition_id bigint references kinemill.rendition,
  check_name text not null check (length(check_name) between 1 and 200),
  check_version integer not null check (check_version >= 0),
  critical boolean not null,
  passed boolean not null,
  score double precision check (score = score and abs(score) < 'infinity'),
  message text not null default '',
  evidence jsonb not null default '{}',
  at timestamptz not null default clock_timestamp(),
  unique nulls not distinct (episode_id, rendition_id, check_name, check_version)
);

create table kinemill.label (
  id bigint generated always as identity primary key,
  episode_id uuid not null references kinemill.episode,
  label_set text not null check (length(label_set) between 1 and 200),
  label text not null check (length(label) between 1 and 400),
  score double precision check (score = score and abs(score) < 'infinity'),
  author text not null default '',
  at timestamptz not null default clock_timestamp(),
  retracted_at timestamptz,
  unique (episode_id, label_set, label)
);

create table kinemill.quarantine (
  id bigint generated always as identity primary key,
  source text not null,
  stage text not null check (length(stage) between 1 and 100),
  code text not null check (length(code) between 1 and 100),
  message text not null,
  episode_id uuid,
  batch text,
  evidence jsonb not null default '{}',
  at timestamptz not null default clock_timestamp(),
  resolved_at timestamptz,
  identity text not null
    generated always as (md5(source || chr(31) || stage || chr(31) || code || chr(31) || coalesce(batch, ''))) stored
    unique
);
comment on column kinemill.quarantine.identity is 'the same finding twice is one row';

-- ---- manifests

create table kinemill.manifest (
  id text primary key check (length(id) between 1 and 200),
  number integer generated always as identity unique,
  object_key text not null unique,
  spec_sha256 bytea not null check (length(spec_sha256) = 32),
  sha256 bytea not null check (length(sha256) = 32),
  snapshot_id bigint not null,
  seed bigint not null,
  row_count bigint not null check (row_count >= 0),
  size_bytes bigint not null check (size_bytes > 0),
  hours double precision not null check (hours >= 0),
  creator text not null default '',
  details jsonb not null default '{}',
  created_at timestamptz not null default clock_timestamp()
);

create table kinemill.manifest_use (
  manifest_number integer not null references kinemill.manifest (number),
  episode_id uuid not null references kinemill.episode,
  primary key (manifest_number, episode_id)
);
create index manifest_use_episode on kinemill.manifest_use (episode_id);

-- ---- withdrawn consent, and who did what

create table kinemill.purge (
  id bigint generated always as identity primary key,
  episode_id uuid not null unique references kinemill.episode,
  reason text not null check (length(reason) between 1 and 4000),
  actor text not null check (length(actor) between 1 and 400),
  objects text[] not null,
  manifests text[] not null,
  requested_at timestamptz not null default clock_timestamp(),
  completed_at timestamptz
);

create table kinemill.audit (
  id bigint generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  actor text not null,
  action text not null check (length(action) between 1 and 100),
  subject text not null,
  details jsonb not null default '{}'
);

-- ---- outbox

create table kinemill.outbox (
  seq bigint generated by default as identity,
  xid xid8 not null default pg_current_xact_id(),
  episode_id uuid not null,
  at timestamptz not null default clock_timestamp(),
  primary key (xid, seq)
);
comment on table kinemill.outbox is
  'read strictly below pg_snapshot_xmin(pg_current_snapshot()): no transaction below it can still commit';

create function kinemill.outbox_episode() returns trigger language plpgsql as $$
begin
  insert into kinemill.outbox (episode_id) select id from new_rows order by id;
  return null;
end $$;

create trigger outbox_insert after insert on kinemill.episode
  referencing new table as new_rows for each statement execute function kinemill.outbox_episode();
create trigger outbox_update after update on kinemill.episode
  referencing new table as new_rows for each statement execute function kinemill.outbox_episode();

-- A change of what belongs to an episode is a change of the episode. An episode that this transaction
-- itself wrote has its outbox row and its new version already.
create function kinemill.touch_episode() returns trigger language plpgsql as $$
begin
  perform 1 from kinemill.episode e where e.id in (select episode_id from new_rows)
    and e.xmin <> pg_current_xact_id()::xid order by e.id for no key update;
  update kinemill.episode e set updated_at = clock_timestamp()
    where e.id in (select episode_id from new_rows) and e.xmin <> pg_current_xact_id()::xid;
  return null;
end $$;

create trigger touch_insert after insert on kinemill.rendition
  referencing new table as new_rows for each statement execute function kinemill.touch_episode();
create trigger touch_update after update on kinemill.rendition
  referencing new table as new_rows for each statement execute function kinemill.touch_episode();
create trigger touch_insert after insert on kinemill.quality_result
  referencing new table as new_rows for each statement execute function kinemill.touch_episode();
create trigger touch_update after update on kinemill.quality_result
  referencing new table as new_rows for each statement execute function kinemill.touch_episode();
create trigger touch_insert after insert on kinemill.label
  referencing new table as new_rows for each statement execute function kinemill.touch_episode();
create trigger touch_update after update on kinemill.label
  referencing new table as new_rows for each statement execute function kinemill.touch_episode();

-- ---- the state machine, and what never changes

create function kinemill.episode_guard() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.state not in ('ingested', 'quarantined') then
      raise exception 'episode %: a new episode is ingested or quarantined, not %', new.id, new.state
        using errcode = 'KM001';
    end if;
    new.row_version := 1;
    return new;
  end if;
  if (new.id, new.vendor_id, new.vendor_key, new.created_at)
      is distinct from (old.id, old.vendor_id, old.vendor_key, old.created_at) then
    raise exception 'episode %: id, vendor, vendor_key and created_at never change', old.id using errcode = 'KM002';
  end if;
  if old.purged_at is not null and new.purged_at is distinct from old.purged_at then
    raise exception 'episode %: a purge is not undone', old.id using errcode = 'KM002';
  end if;
  if new.state <> old.state and not exists (
      select from kinemill.episode_transition t where t.old_state = old.state and t.new_state = new.state) then
    raise exception 'episode %: % may not become %', old.id, old.state, new.state using errcode = 'KM001';
  end if;
  new.row_version := old.row_version + 1;
  new.updated_at := clock_timestamp();
  return new;
end $$;
create trigger guard before insert or update on kinemill.episode
  for each row execute function kinemill.episode_guard();

create function kinemill.rendition_guard() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    perform 1 from kinemill.episode e where e.id = new.episode_id and e.purged_at is not null;
    if found then
      raise exception 'episode %: consent was withdrawn; it takes no new object', new.episode_id using errcode = 'KM001';
    end if;
    return new;
  end if;
  if (new.id, new.episode_id, new.profile, new.object_key, new.sha256, new.size_bytes, new.created_at)
      is distinct from (old.id, old.episode_id, old.profile, old.object_key, old.sha256, old.size_bytes, old.created_at)
  then
    raise exception 'rendition %: what an object is never changes; a correction is a new key', old.object_key
      using errcode = 'KM002';
  end if;
  if new.current and not old.current then
    raise exception 'rendition %: superseded ones stay superseded', old.object_key using errcode = 'KM002';
  end if;
  return new;
end $$;
create trigger guard before insert or update on kinemill.rendition
  for each row execute function kinemill.rendition_guard();

create function kinemill.never_deleted() returns trigger language plpgsql as $$
begin
  raise exception '%.%: rows are never deleted; retire the episode, or purge it for withdrawn consent',
    tg_table_schema, tg_table_name using errcode = 'KM004';
end $$;
create function kinemill.never_changed() returns trigger language plpgsql as $$
begin
  raise exception '%.%: rows are never changed', tg_table_schema, tg_table_name using errcode = 'KM002';
end $$;

do $$
declare name text;
begin
  foreach name in array array['episode', 'rendition', 'rendition_receipt', 'episode_group', 'quality_result', 'label',
      'delivery', 'manifest', 'manifest_use', 'purge', 'audit', 'identity'] loop
    execute format('create trigger keep before delete on kinemill.%I for each row
      execute function kinemill.never_deleted()', name);
    execute format('create trigger keep_all before truncate on kinemill.%I for each statement
      execute function kinemill.never_deleted()', name);
  end loop;
  foreach name in array array['rendition_receipt', 'episode_group', 'audit', 'manifest', 'manifest_use',
      'identity'] loop
    execute format('create trigger keep_as_is before update on kinemill.%I for each row
      execute function kinemill.never_changed()', name);
  end loop;
end $$;

-- ---- fit to be published: checked at commit, so that order inside a transaction does not matter

create function kinemill.publish_check() returns trigger language plpgsql as $$
declare
  episode uuid := case when tg_table_name = 'episode' then to_jsonb(new) ->> 'id' else to_jsonb(new) ->> 'episode_id' end;
  bad text;
begin
  perform 1 from kinemill.episode e where e.id = episode and e.state = 'published' for no key update;
  if not found then
    return null;
  end if;
  if not exists (select from kinemill.rendition r where r.episode_id = episode and r.current) then
    raise exception 'episode %: published without a rendition', episode using errcode = 'KM003';
  end if;
  select string_agg(r.object_key, ', ') into bad from kinemill.rendition r
    where r.episode_id = episode and r.current and (r.verified_at is null or r.purged_at is not null);
  if bad is not null then
    raise exception 'episode %: published but not read back: %', episode, bad using errcode = 'KM003';
  end if;
  select string_agg(r.object_key, ', ') into bad from kinemill.rendition r
    where r.episode_id = episode and r.current
      and not exists (select from kinemill.episode_group g where g.rendition_id = r.id);
  if bad is not null then
    raise exception 'episode %: published without any topic group: %', episode, bad using errcode = 'KM003';
  end if;
  if not exists (select from kinemill.quality_result q where q.episode_id = episode and q.critical) then
    raise exception 'episode %: published without a critical quality result', episode using errcode = 'KM003';
  end if;
  select string_agg(f.check_name, ', ') into bad from (
    select distinct on (q.check_name, q.rendition_id) q.check_name, q.passed, q.critical
      from kinemill.quality_result q left join kinemill.rendition r on r.id = q.rendition_id
      where q.episode_id = episode and coalesce(r.current, true)
      order by q.check_name, q.rendition_id, q.check_version desc) f
    where f.critical and not f.passed;
  if bad is not null then
    raise exception 'episode %: published although critical checks failed: %', episode, bad using errcode = 'KM003';
  end if;
  return null;
end $$;

create constraint trigger fit_to_publish after insert or update on kinemill.episode
  deferrable initially deferred for each row when (new.state = 'published')
  execute function kinemill.publish_check();
create constraint trigger fit_to_publish after insert or update on kinemill.rendition
  deferrable initially deferred for each row when (new.current)
  execute function kinemill.publish_check();
create constraint trigger fit_to_publish after insert or update on kinemill.quality_result
  deferrable initially deferred for each row when (new.critical and not new.passed)
  execute function kinemill.publish_check();
