"""Checkpoints with flipped bits and without their ends: an error that names the file, and never other values."""

import glob
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lockstep._src import embedding
from lockstep._src.library import LibraryError
from lockstep._src.saving import bundle, sealed
from lockstep._src.saving import tables as saved_tables
from lockstep._src.saving.chain import FOLDER, Chain
from lockstep._src.scope import scope
from lockstep._src.sharding.scope import sharding
from lockstep.testing.mutations import feed
