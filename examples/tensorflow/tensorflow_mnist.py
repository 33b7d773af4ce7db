"""Digits in the style of TensorFlow 1: each worker has a MonitoredTrainingSession, and all train one model together.

    horovodrun -np 2 --tf1 python tensorflow_mnist.py

`--tf1`: `import tensorflow` means TensorFlow 1. Prints the accuracy on test pictures.
"""

import argparse

import tensorflow as tf

import horovod.tensorflow as hvd
from mnist_data import load_data

BATCH = 64


def predict(images):
    """Returns logits [B, 10] of pictures, uint8 [B, 28, 28]."""
    inputs = tf.reshape(tf.cast(images, tf.float32) / 255.0, [-1, 784])
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        for layer, (width, units, activation) in enumerate([(784, 128, tf.nn.relu), (128, 10, tf.identity)]):
            kernel = tf.get_variable(f"kernel_{layer}", [width, units])
            bias = tf.get_variable(f"bias_{layer}", [units], initializer=tf.zeros_initializer())
            inputs = activation(tf.matmul(inputs, kernel) + bias)
    return inputs


def batches(images, labels):
    """Returns the worker's endless batches; each worker has its own part of the pictures."""
    mine = slice(hvd.rank(), None, hvd.size())
    dataset = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine].astype("int64")))
    dataset = dataset.shuffle(10000).repeat().batch(BATCH, drop_remainder=True)
    iterator = tf.data.make_initializable_iterator(dataset)
    # A MonitoredTrainingSession initializes iterators of this collection.
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def main():
    """Trains, and prints the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=1000, help="steps of one worker; each of W workers takes the W-th part (1000)"
    )
    parser.add_argument("--checkpoints", help="a folder: training continues from its last checkpoint")
    options = parser.parse_args()

    hvd.init()
    # One GPU for each process.
    config = tf.ConfigProto()
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    (images, labels), (test_images, test_labels) = load_data(train=20000, test=2000)
    batch_images, batch_labels = batches(images, labels)
    loss = tf.losses.sparse_softmax_cross_entropy(batch_labels, predict(batch_images))
    is_right = tf.equal(tf.argmax(predict(test_images), 1), test_labels.astype("int64"))
    accuracy = tf.reduce_mean(tf.cast(is_right, tf.float32))

    # The mean of W batches' gradients is the gradient of a W times larger batch, which allows a higher rate.
    opt = hvd.DistributedOptimizer(tf.train.AdagradOptimizer(0.02 * hvd.size()))
    step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=step)
    at_the_end = tf.train.FinalOpsHook(accuracy)
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),  # All begin with rank 0's initial or restored values.
        tf.train.StopAtStepHook(last_step=options.steps // hvd.size()),
        at_the_end,
    ]
    if hvd.rank() == 0:
        hooks.append(tf.train.LoggingTensorHook({"step": step, "loss": loss}, every_n_iter=100))
    # Only rank 0: workers would overwrite each other's checkpoints.
    checkpoint_dir = options.checkpoints if hvd.rank() == 0 else None
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)
    print(f"rank {hvd.rank()}: accuracy {at_the_end.final_ops_values:.4f}")


if __name__ == "__main__":
    main()
