# lockstep_locate(<package> <folders> <result>)
#
# Sets <result> to a list of "folder version" pairs, two elements each: of every folder of the list <folders>, or of the
# one that is installed for ${Python3_EXECUTABLE}.
function(lockstep_locate package folders result)
  if(NOT folders)
    set(folders "installed")
  endif()
  set(found "")
  foreach(folder ${folders})
    set(arguments ${package})
    if(NOT folder STREQUAL "installed")
      list(APPEND arguments "${folder}")
    endif()
    execute_process(COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/locate.py" ${arguments}
      OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    if(NOT output MATCHES "^[^;]+;[0-9]+\\.[0-9]+")
      # Lines that begin with a space are not wrapped.
      message(FATAL_ERROR "\n lockstep-tf is built against the installed TensorFlow and pyarrow, and ${Python3_EXECUTABLE} "
        "has no ${package}: pip install tensorflow pyarrow scikit-build-core cmake ninja, and build with --no-build-isolation\n")
    endif()
    list(APPEND found ${output})
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()
