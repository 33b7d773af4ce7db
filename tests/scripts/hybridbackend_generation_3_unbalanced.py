"""Section 4 of HybridBackend's documentation, third generation: workers with different amounts of data.

Runs under `--tf1`. Usage: hybridbackend_generation_3_unbalanced.py FOLDER; worker r reads FOLDER/r.parquet.
"""

import sys

import tensorflow as tf

import hybridbackend.tensorflow as hb

bucket_size, lr = 97, 0.5


def train(name):
    file = f"{sys.argv[1]}/{hb.context.rank}.parquet"
    # Each worker reads the whole of its own file.
    dataset = hb.data.ParquetDataset(file, batch_size=50, partition_count=1, partition_index=0)
    features = tf.data.make_one_shot_iterator(dataset).get_next()
    slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
    with hb.embedding_scope():
        embedding_weights = tf.get_variable("emb_weights", [bucket_size, 1], initializer=tf.zeros_initializer())
    embedding = tf.nn.embedding_lookup(embedding_weights, features["item"])
    logits = slope * tf.cast(features["price"], tf.float32) + tf.squeeze(embedding, axis=1)
    labels = tf.cast(features["label"], tf.float32)
    # The program computes this mean itself: NaN for a batch without rows.
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    step = tf.train.get_or_create_global_step()
    train_op = tf.train.GradientDescentOptimizer(lr).minimize(loss, step)
    folder = f"{sys.argv[1]}/{name}"
    with tf.train.MonitoredTrainingSession("", checkpoint_dir=folder) as sess:
        while not sess.should_stop():
            print(name, "loss", sess.run([loss, train_op])[0], flush=True)


def main(name):
    with tf.Graph().as_default():
        train(name)


if __name__ == "__main__":
    with hb.scope(data_sync_drop_remainder=True):
        main("dropped")
    with hb.scope(data_sync_drop_remainder=False):
        main("kept")
