"""Training with a data service whose dispatchers run in the compute job."""

import tensorflow as tf

import horovod.tensorflow.keras as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig  # gives datasets send_to_data_service
from mnist_data import load_data

EPOCHS, STEPS = 4, 64


def train_fn(compute_config: TfDataServiceConfig, reuse_dataset=False, round_robin=False):
    """Trains a model on batches of the compute job. Returns its accuracy on test pictures.

    Args:
      compute_config: The config of the compute job.
      reuse_dataset: Workers share one pass through the data, with one dispatcher for all.
      round_robin: Workers take batches in turn.
    """
    hvd.init()
    # One GPU for each process.
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    (images, labels), test = load_data(train=6000, test=2000)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    # The compute job runs the part before send_to_data_service.
    dataset = (
        dataset.repeat()
        .shuffle(2000)
        .batch(32)
        .send_to_data_service(
            compute_config, hvd.rank(), hvd.size(), reuse_dataset=reuse_dataset, round_robin=round_robin
        )
        .prefetch(tf.data.experimental.AUTOTUNE)
    )

    model = tf.keras.Sequential(
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
    rate = 0.001 * hvd.size()
    opt = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(rate))
    model.compile(optimizer=opt, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=1),
    ]
    model.fit(
        dataset,
        steps_per_epoch=STEPS // hvd.size(),
        epochs=EPOCHS,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(*test, batch_size=500, verbose=0)
    print(f"rank {hvd.rank()}: accuracy {accuracy:.4f}")
    return accuracy
