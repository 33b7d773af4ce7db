#pragma once

namespace lockstep {

// How many cores this process may run on; at least 1.
int AvailableCores();

}  // namespace lockstep
