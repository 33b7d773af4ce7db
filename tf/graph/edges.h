#pragma once

#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace lockstep {

// Gives the edges of a node to another one, and removes the node from the graph.
// inputs, outputs: for each input and output of the node, its index at the other one.
void TakePlace(tensorflow::Graph* graph, tensorflow::Node* node, tensorflow::Node* other,
               const std::vector<int>& inputs, const std::vector<int>& outputs);

}  // namespace lockstep
