# Arrow and Parquet from the installed pyarrow wheel: headers, and the versioned libraries beside its Python modules.
# The wheel is only located, never imported, because it may refuse the NumPy that TensorFlow pins. The SONAME carries
# the major version, so our library runs with that major version of pyarrow alone.
execute_process(
  COMMAND "${Python3_EXECUTABLE}" -c "import importlib.util as u; print(u.find_spec('pyarrow').submodule_search_locations[0])"
  OUTPUT_VARIABLE LOCKSTEP_PYARROW_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result ERROR_VARIABLE error)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "Arrow: ${Python3_EXECUTABLE} has no pyarrow to build against: pip install pyarrow\n${error}")
endif()
foreach(part arrow arrow_compute arrow_dataset parquet)
  file(GLOB library "${LOCKSTEP_PYARROW_DIR}/lib${part}.so.*")
  if(NOT library)
    message(FATAL_ERROR "Arrow: no lib${part}.so.* in ${LOCKSTEP_PYARROW_DIR}")
  endif()
  list(APPEND LOCKSTEP_ARROW_LIBRARIES "${library}")
endforeach()

add_library(lockstep_arrow INTERFACE)
target_include_directories(lockstep_arrow SYSTEM INTERFACE "${LOCKSTEP_PYARROW_DIR}/include")
target_link_libraries(lockstep_arrow INTERFACE ${LOCKSTEP_ARROW_LIBRARIES})
target_link_options(lockstep_arrow INTERFACE "-Wl,-rpath,$ORIGIN/../pyarrow" "-Wl,-rpath,${LOCKSTEP_PYARROW_DIR}")
