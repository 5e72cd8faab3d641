-- What a row is about never changes, and what was recorded stays: for all tables, not only for those of the objects.

-- ---- a check that looked at an object looked at one of its own episode

alter table kinemill.rendition add constraint rendition_of_its_episode unique (id, episode_id);
alter table kinemill.quality_result add constraint quality_of_its_own_object
  foreign key (rendition_id, episode_id) references kinemill.rendition (id, episode_id) not valid;
alter table kinemill.quality_result validate constraint quality_of_its_own_object;

-- ---- rows keep what they are about

create function kinemill.never_moved() returns trigger language plpgsql as $$
begin
  raise exception '%.%: what a row is about never changes (%)', tg_table_schema, tg_table_name, tg_argv[0]
    using errcode = 'KM002';
end $$;

create trigger keep_identity before update on kinemill.quality_result for each row
  when ((old.id, old.episode_id, old.rendition_id, old.check_name, old.check_version)
    is distinct from (new.id, new.episode_id, new.rendition_id, new.check_name, new.check_version))
  execute function kinemill.never_moved('episode, object, check, version');
create trigger keep_identity before update on kinemill.label for each row
  when ((old.id, old.episode_id, old.label_set, old.label)
    is distinct from (new.id, new.episode_id, new.label_set, new.label))
  execute function kinemill.never_moved('episode, label set, label');
create trigger keep_identity before update on kinemill.purge for each row
  when ((old.id, old.episode_id, old.reason, old.actor, old.requested_at)
    is distinct from (new.id, new.episode_id, new.reason, new.actor, new.requested_at))
  execute function kinemill.never_moved('episode, reason, actor');
create trigger keep_identity before update on kinemill.run for each row
  when ((old.id, old.batch) is distinct from (new.id, new.batch))
  execute function kinemill.never_moved('batch');
create trigger keep_identity before update on kinemill.run_step for each row
  when ((old.batch, old.step, old.step_version, old.input_digest)
    is distinct from (new.batch, new.step, new.step_version, new.input_digest))
  execute function kinemill.never_moved('batch, step, version, input');
create trigger keep_identity before update on kinemill.quarantine for each row
  when ((old.id, old.source, old.stage, old.code, old.batch)
    is distinct from (new.id, new.source, new.stage, new.code, new.batch))
  execute function kinemill.never_moved('source, stage, code, batch');
-- Where the groups lie is of the object, as its size is; the receipt it was made from cannot change either.
create trigger keep_layout before update on kinemill.rendition for each row
  when ((old.layout, old.topic_set_id, old.gop_frames) is distinct from (new.layout, new.topic_set_id, new.gop_frames))
  execute function kinemill.never_moved('layout, topics, GOP');

-- A step that is done is done; a changed step has another version, a changed input another digest.
create trigger keep_result before update on kinemill.run_step for each row
  when (old.state in ('ok', 'warn', 'skipped'))
  execute function kinemill.never_changed();

-- ---- and stay

do $$
declare name text;
begin
  foreach name in array array['run', 'run_step', 'quarantine', 'topic_set'] loop
    execute format('create trigger keep before delete on kinemill.%I for each row
      execute function kinemill.never_deleted()', name);
    execute format('create trigger keep_all before truncate on kinemill.%I for each statement
      execute function kinemill.never_deleted()', name);
  end loop;
  foreach name in array array['delivery', 'topic_set'] loop
    execute format('create trigger keep_as_is before update on kinemill.%I for each row
      execute function kinemill.never_changed()', name);
  end loop;
end $$;
