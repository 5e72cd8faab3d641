drop table kinemill.outbox, kinemill.audit, kinemill.purge, kinemill.manifest_use, kinemill.manifest,
  kinemill.quarantine, kinemill.label, kinemill.quality_result, kinemill.episode_group, kinemill.rendition_receipt,
  kinemill.rendition, kinemill.episode, kinemill.episode_transition, kinemill.run_step, kinemill.run,
  kinemill.delivery, kinemill.topic_set, kinemill.task, kinemill.robot, kinemill.vendor,
  kinemill.identity;
drop function kinemill.outbox_episode(), kinemill.touch_episode(), kinemill.episode_guard(),
  kinemill.rendition_guard(), kinemill.never_deleted(), kinemill.never_changed(), kinemill.publish_check();
