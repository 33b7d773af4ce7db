# TensorFlow's headers and its library, from wheels.
#
# lockstep_tensorflow_<minor> has the flags for one of them, such as lockstep_tensorflow_2.21;
# LOCKSTEP_TENSORFLOW_MINORS lists them, and LOCKSTEP_TENSORFLOW_VERSIONS their whole versions.
set(LOCKSTEP_TENSORFLOW_DIRS "" CACHE STRING "Folders of TensorFlow to build for; empty: the installed one")
lockstep_locate(tensorflow "${LOCKSTEP_TENSORFLOW_DIRS}" located)
# Those of tf.sysconfig, the same since 2.9; library_test.py compares them. The wheels' own -std flag is dropped: our
# sources are C++20, which the headers accept. -DNDEBUG is part of the wheels' ABI: without it, graph nodes have another
# layout and graph passes crash.
set(LOCKSTEP_TENSORFLOW_FLAGS -D_GLIBCXX_USE_CXX11_ABI=1 -DEIGEN_MAX_ALIGN_BYTES=64)
set(LOCKSTEP_TENSORFLOW_MINORS "")
set(LOCKSTEP_TENSORFLOW_VERSIONS "")
while(located)
  list(POP_FRONT located folder version)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")
  list(APPEND LOCKSTEP_TENSORFLOW_MINORS ${minor})
  list(APPEND LOCKSTEP_TENSORFLOW_VERSIONS ${version})
  message(STATUS "TensorFlow ${version} in ${folder}")
  add_library(lockstep_tensorflow_${minor} INTERFACE)
  target_include_directories(lockstep_tensorflow_${minor} SYSTEM INTERFACE "${folder}/include")
  target_compile_options(lockstep_tensorflow_${minor} INTERFACE ${LOCKSTEP_TENSORFLOW_FLAGS} -DNDEBUG)
  # A library, not an option, because it has to come after the objects that need it.
  target_link_libraries(lockstep_tensorflow_${minor} INTERFACE "${folder}/libtensorflow_framework.so.2")
endwhile()
