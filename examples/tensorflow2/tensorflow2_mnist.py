"""Digits with a GradientTape and a custom training loop: the workers train one model together.

    horovodrun -np 2 python tensorflow2_mnist.py

Prints the accuracy on test pictures.
"""

import argparse

import tensorflow as tf

import horovod.tensorflow as hvd
from mnist_data import load_data

BATCH = 64


def main():
    """Trains, and prints the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=1000, help="steps of one worker; each of W workers takes the W-th part (1000)"
    )
    parser.add_argument("--checkpoints", help="a folder for the final model")
    options = parser.parse_args()

    hvd.init()
    # One GPU for each process.
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    (images, labels), (test_images, test_labels) = load_data(train=20000, test=2000)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shard(hvd.size(), hvd.rank())
    dataset = dataset.shuffle(10000).repeat().batch(BATCH, drop_remainder=True)
    model = tf.keras.Sequential(
        [
            tf.keras.Input([28, 28], dtype="uint8"),
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Reshape([28, 28, 1]),
            tf.keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # The mean of W batches' gradients is the gradient of a W times larger batch, which allows a higher rate.
    opt = tf.keras.optimizers.Adam(0.001 * hvd.size())
    # All begin with rank 0's values.
    opt.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def training_step(images, labels):
        with tf.GradientTape() as tape:
            loss_value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss_value, model.trainable_variables)
        opt.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss_value

    for step, (batch_images, batch_labels) in enumerate(dataset.take(options.steps // hvd.size())):
        loss_value = training_step(batch_images, batch_labels)
        if step % 100 == 0 and hvd.rank() == 0:
            print(f"step {step}: loss {loss_value:.4f}")

    is_right = tf.argmax(model(test_images), axis=1) == tf.cast(test_labels, tf.int64)
    print(f"rank {hvd.rank()}: accuracy {tf.reduce_mean(tf.cast(is_right, tf.float32)):.4f}")
    # Only rank 0: workers would overwrite each other's checkpoints.
    if options.checkpoints and hvd.rank() == 0:
        tf.train.Checkpoint(model=model, optimizer=opt).save(f"{options.checkpoints}/model")


if __name__ == "__main__":
    main()
