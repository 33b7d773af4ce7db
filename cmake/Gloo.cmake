# Gloo, for exchanges between hosts on CPU: the system's library (Debian's libgloo-dev).
find_path(LOCKSTEP_GLOO_INCLUDE gloo/transport/tcp/device.h)
find_library(LOCKSTEP_GLOO_LIBRARY gloo)
if(NOT LOCKSTEP_GLOO_INCLUDE OR NOT LOCKSTEP_GLOO_LIBRARY)
  message(FATAL_ERROR "Gloo: no headers and library found: apt-get install libgloo-dev")
endif()

add_library(lockstep_gloo INTERFACE)
target_include_directories(lockstep_gloo SYSTEM INTERFACE "${LOCKSTEP_GLOO_INCLUDE}")
target_link_libraries(lockstep_gloo INTERFACE "${LOCKSTEP_GLOO_LIBRARY}")
# Other headers of Debian's package include one header that the package lacks. Ours is searched last, so that a package
# that has the header uses its own.
target_compile_options(lockstep_gloo INTERFACE "-idirafter${CMAKE_CURRENT_LIST_DIR}/gloo")
