# Flags of the installed TensorFlow wheel. tf.sysconfig gives all of them in one import of TensorFlow.
execute_process(
  COMMAND "${Python3_EXECUTABLE}" -c
    "import tensorflow as tf; s = tf.sysconfig; print(tf.__version__, s.get_include(), s.get_lib(), ' '.join(s.get_compile_flags()), ' '.join(s.get_link_flags()), sep=';')"
  OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result ERROR_VARIABLE error)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "TensorFlow: ${Python3_EXECUTABLE} cannot import it:\n${error}")
endif()
list(GET output 0 LOCKSTEP_TENSORFLOW_VERSION)
list(GET output 1 LOCKSTEP_TENSORFLOW_INCLUDE)
list(GET output 2 LOCKSTEP_TENSORFLOW_LIB)
list(GET output 3 compile_flags)
list(GET output 4 link_flags)
message(STATUS "TensorFlow ${LOCKSTEP_TENSORFLOW_VERSION} in ${LOCKSTEP_TENSORFLOW_LIB}")
separate_arguments(compile_flags)
separate_arguments(link_flags)
# The wheel's own -std flag is dropped: our sources are C++20, which its headers accept.
list(FILTER compile_flags EXCLUDE REGEX "^-+(std=|I)")

add_library(lockstep_tensorflow INTERFACE)
target_include_directories(lockstep_tensorflow SYSTEM INTERFACE "${LOCKSTEP_TENSORFLOW_INCLUDE}")
# -DNDEBUG is part of the wheel's ABI: without it, graph nodes have another layout and graph passes crash.
target_compile_options(lockstep_tensorflow INTERFACE ${compile_flags} -DNDEBUG)
# Passed as libraries, not as options, because they have to come after the objects that need them.
target_link_libraries(lockstep_tensorflow INTERFACE ${link_flags})
