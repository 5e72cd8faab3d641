do $$
declare one record;
begin
  for one in
    select c.relname, t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
      where c.relnamespace = 'kinemill'::regnamespace and not t.tgisinternal
        and (t.tgname in ('keep_identity', 'keep_layout')
          or c.relname in ('run', 'run_step', 'quarantine', 'topic_set') and t.tgname like 'keep%'
          or c.relname = 'delivery' and t.tgname = 'keep_as_is')
  loop
    execute format('drop trigger %I on kinemill.%I', one.tgname, one.relname);
  end loop;
end $$;
drop function kinemill.never_moved();
alter table kinemill.quality_result drop constraint quality_of_its_own_object;
alter table kinemill.rendition drop constraint rendition_of_its_episode;
