"""Digits, with a Keras model's `fit`: the workers train one model together.

    horovodrun -np 2 python tensorflow2_keras_mnist.py

Runs with Keras 3 and with Keras 2. Prints the accuracy on test pictures.
"""

import argparse

import tensorflow as tf

import horovod.tensorflow.keras as hvd
from mnist_data import load_data

BATCH = 64


def build():
    """Returns the untrained model."""
    return tf.keras.Sequential(
        [
            tf.keras.Input([28, 28], dtype="uint8"),
            tf.keras.layers.Rescaling(1 / 255),
            tf.keras.layers.Reshape([28, 28, 1]),
            tf.keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    """Trains, and prints the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--pictures", type=int, default=20000, help="pictures to train on; each worker has its part (20000)"
    )
    parser.add_argument("--best", help="a file, *.keras, for the model with the best test loss")
    options = parser.parse_args()

    hvd.init()
    # One GPU for each process.
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    (images, labels), test = load_data(train=options.pictures, test=2000)
    # The parts have equal lengths, because all workers must take the same number of steps.
    mine = slice(hvd.rank(), len(images) // hvd.size() * hvd.size(), hvd.size())
    dataset = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine])).shuffle(10000).batch(BATCH)

    model = build()
    # The mean of W batches' gradients is the gradient of a W times larger batch, which allows a higher rate.
    rate = 0.001 * hvd.size()
    opt = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(rate))
    model.compile(optimizer=opt, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # All begin with rank 0's values.
        hvd.callbacks.MetricAverageCallback(),  # Before callbacks that use metrics.
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=1),
    ]
    # Only rank 0: workers would overwrite each other's files.
    if options.best and hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(options.best, monitor="val_loss", save_best_only=True))
    model.fit(
        dataset,
        epochs=options.epochs,
        callbacks=callbacks,
        validation_data=test,
        validation_batch_size=500,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(*test, batch_size=500, verbose=0)
    print(f"rank {hvd.rank()}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
