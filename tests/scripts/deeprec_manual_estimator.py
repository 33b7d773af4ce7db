"""The second program of DeepRec's manual on collective training, as it is written there.

Its gaps are filled in: `self._args.lr`, labels, and the return values for evaluation and export.
"""

from types import SimpleNamespace

import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy

self = SimpleNamespace(_args=SimpleNamespace(lr=0.05))

#STEP1:  initialize a collective strategy
strategy = CollectiveStrategy()
#STEP2:  define the data parallel scope
with strategy.scope(), tf.Graph().as_default():
    def input_fn():
        ratings = tfds.load("movie_lens/100k-ratings", split="train")
        ratings = ratings.map(
            lambda x: {
                "movie_id": tf.strings.to_number(x["movie_id"], tf.int64),
                "user_id": tf.strings.to_number(x["user_id"], tf.int64),
                "user_rating": x["user_rating"]
            })
        shuffled = ratings.shuffle(1_000_000,
                                    seed=2021,
                                    reshuffle_each_iteration=False)
        dataset = shuffled.batch(256)
        return dataset

    def input_receiver():
        r'''Prediction input receiver.
        '''
        inputs = {
            "movie_id": tf.placeholder(dtype=tf.int64, shape=[None]),
            "user_id": tf.placeholder(dtype=tf.int64, shape=[None]),
            "user_rating": tf.placeholder(dtype=tf.float32, shape=[None])
        }
        return tf.estimator.export.ServingInputReceiver(inputs, inputs)

    def model_fn(features, labels, mode, params):
        r'''Model function for estimator.
        '''
        del params
        movie_id = features["movie_id"]
        user_id = features["user_id"]
        rating = features["user_rating"]
        labels = rating > 3

        embedding_columns = [
            tf.feature_column.embedding_column(
                tf.feature_column.categorical_column_with_embedding(
                    "movie_id", dtype=tf.int64),
                dimension=16,
                initializer=tf.random_uniform_initializer(-1e-3, 1e-3)),
            tf.feature_column.embedding_column(
                tf.feature_column.categorical_column_with_embedding(
                    "user_id", dtype=tf.int64),
                dimension=16,
                initializer=tf.random_uniform_initializer(-1e-3, 1e-3))
            ]
        #STEP3:  define the model parallel scope
        with strategy.embedding_scope():
            with tf.variable_scope(
                'embedding',
                partitioner=tf.fixed_size_partitioner(
                strategy.world_size)):
                deep_features = [
                    tf.feature_column.input_layer(features, [c])
                    for c in embedding_columns]
        emb = tf.concat(deep_features, axis=-1)
        logits = tf.multiply(emb, 2.0, name='multiply')

        if mode == tf.estimator.ModeKeys.TRAIN:
            labels = tf.reshape(tf.to_float(labels), shape=[-1, 1])
            loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, logits))
            step = tf.train.get_or_create_global_step()
            opt = tf.train.AdagradOptimizer(learning_rate=self._args.lr)
            train_op = opt.minimize(loss, global_step=step)
            return tf.estimator.EstimatorSpec(
                mode=mode,
                loss=loss,
                train_op=train_op,
                training_chief_hooks=[])

        if mode == tf.estimator.ModeKeys.EVAL:
            labels = tf.reshape(tf.to_float(labels), shape=[-1, 1])
            loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, logits))
            return tf.estimator.EstimatorSpec(mode=mode, loss=loss)
        return tf.estimator.EstimatorSpec(mode=mode, predictions={"logits": logits})
    estimator = strategy.estimator(model_fn=model_fn,
                                   model_dir="./",
                                   config=None)
    estimator.train_and_evaluate(
      tf.estimator.TrainSpec(
        input_fn=input_fn,
        max_steps=50),
      tf.estimator.EvalSpec(
        input_fn=input_fn))
    estimator.export_saved_model("./", input_receiver)
