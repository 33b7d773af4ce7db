"""The launchers of other projects on top of this one: Horovod's `horovodrun` and `horovod.run`, and DeepRec's."""
