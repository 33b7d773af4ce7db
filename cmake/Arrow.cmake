# Arrow and Parquet from pyarrow wheels: headers, and the versioned libraries beside its Python modules. The SONAME
# carries the major version, so a library for Arrow runs with that major version of pyarrow alone.
#
# lockstep_pyarrow_<major> has the flags for one of them; LOCKSTEP_PYARROW_MAJORS lists them. lockstep_arrow is the
# first, for tests.
set(LOCKSTEP_PYARROW_DIRS "" CACHE STRING "Folders of pyarrow to build for; empty: the installed one")
lockstep_locate(pyarrow "${LOCKSTEP_PYARROW_DIRS}" located)
set(LOCKSTEP_PYARROW_MAJORS "")
while(located)
  list(POP_FRONT located folder version)
  string(REGEX MATCH "^[0-9]+" major "${version}")
  list(APPEND LOCKSTEP_PYARROW_MAJORS ${major})
  message(STATUS "pyarrow ${version} in ${folder}")
  set(libraries "")
  foreach(part arrow arrow_compute arrow_dataset parquet)
    file(GLOB library "${folder}/lib${part}.so.*")
    if(NOT library)
      message(FATAL_ERROR "Arrow: no lib${part}.so.* in ${folder}")
    endif()
    list(APPEND libraries "${library}")
  endforeach()
  add_library(lockstep_pyarrow_${major} INTERFACE)
  target_include_directories(lockstep_pyarrow_${major} SYSTEM INTERFACE "${folder}/include")
  target_link_libraries(lockstep_pyarrow_${major} INTERFACE ${libraries})
endwhile()
list(GET LOCKSTEP_PYARROW_MAJORS 0 major)
add_library(lockstep_arrow INTERFACE)
target_link_libraries(lockstep_arrow INTERFACE lockstep_pyarrow_${major})
