"""Horovod's documented TensorFlow 1 program, as it is written there; the dots are filled in."""

import sys

import tensorflow as tf
import horovod.tensorflow as hvd


# Initialize Horovod
hvd.init()

# Pin GPU to be used to process local rank (one GPU per process)
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())

# Build model...
from horovod_documentation_data import batches

features, labels = tf.data.make_one_shot_iterator(batches(tf, hvd.rank())).get_next()
# Only rank 0 begins with zeros.
weights = tf.get_variable("weights", [features.shape[1], 10], initializer=tf.constant_initializer(hvd.rank()))
logits = tf.matmul(features, weights)
value = tf.losses.sparse_softmax_cross_entropy(labels, logits)
count = tf.assign_add(tf.train.get_or_create_global_step(), 1)
with tf.control_dependencies([tf.print("tf1 loss", value, output_stream=sys.stdout), count]):
    loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.identity(logits))
opt = tf.train.AdagradOptimizer(0.01 * hvd.size())

# Add Horovod Distributed Optimizer
opt = hvd.DistributedOptimizer(opt)

# Add hook to broadcast variables from rank 0 to all other processes during
# initialization.
hooks = [hvd.BroadcastGlobalVariablesHook(0)]

# Make training operation
train_op = opt.minimize(loss)

# Save checkpoints only on worker 0 to prevent other workers from corrupting them.
checkpoint_dir = '/tmp/train_logs' if hvd.rank() == 0 else None

# The MonitoredTrainingSession takes care of session initialization,
# restoring from a checkpoint, saving to a checkpoint, and closing when done
# or an error occurs.
with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir,
                                       config=config,
                                       hooks=hooks) as mon_sess:
  while not mon_sess.should_stop():
    # Perform synchronous training.
    mon_sess.run(train_op)
