# The library for GPUs, by nvcc: the system's, or the one that `tools/setup.sh cuda` installs. nvcc runs by commands of
# our own, because CMake's language CUDA does not find the parts of the packages.
#
# LOCKSTEP_HAS_CUDA says whether this build makes it.
set(LOCKSTEP_HAS_CUDA OFF)
if(LOCKSTEP_BUILD_CUDA STREQUAL "AUTO" AND (NOT LOCKSTEP_BUILD_TESTS OR LOCKSTEP_SANITIZE) OR NOT LOCKSTEP_BUILD_CUDA)
  return()
endif()
function(lockstep_is_cuda13 result nvcc)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(NOT version MATCHES "release 13\\.")
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()
find_program(LOCKSTEP_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda/bin "${PROJECT_SOURCE_DIR}/.venv-cuda13/nvidia/cu13/bin"
  VALIDATOR lockstep_is_cuda13 DOC "nvcc of CUDA 13")
if(NOT LOCKSTEP_NVCC)
  if(NOT LOCKSTEP_BUILD_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "CUDA: no nvcc of CUDA 13 found: run tools/setup.sh cuda, or set LOCKSTEP_NVCC")
  endif()
  message(STATUS "CUDA: no nvcc of CUDA 13; the library for GPUs is not built (tools/setup.sh cuda installs one)")
  return()
endif()
set(LOCKSTEP_HAS_CUDA ON)
message(STATUS "CUDA: ${LOCKSTEP_NVCC}")
# The packages have their libraries in lib, where their nvcc does not look.
get_filename_component(folder "${LOCKSTEP_NVCC}" REALPATH)
get_filename_component(folder "${folder}" DIRECTORY)
set(LOCKSTEP_CUDA_LINK "-L${folder}/../lib")

# Machine code for the GPUs that the compiler knows, and for all later ones an intermediate language that the driver
# compiles.
set(LOCKSTEP_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "Compute capabilities with machine code; the last one also gets PTX")
execute_process(COMMAND "${LOCKSTEP_NVCC}" --list-gpu-code OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
set(cuda_architectures "")
foreach(number ${LOCKSTEP_CUDA_ARCHITECTURES})
  if(known MATCHES "sm_${number}\n")
    list(APPEND cuda_architectures -gencode "arch=compute_${number},code=sm_${number}")
    set(last ${number})
  endif()
endforeach()
list(APPEND cuda_architectures -gencode "arch=compute_${last},code=compute_${last}")

# -fmad=false: a multiplication and an addition are rounded twice, as on the CPU. ptxas reports the registers of each
# kernel, and fails if it has to spill some into memory.
set(LOCKSTEP_CUDA_FLAGS -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr ${cuda_architectures}
  -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-unused-parameter,-Wno-attributes
  -Xptxas -v,--warn-on-spills,--warning-as-error)
if(LOCKSTEP_WERROR)
  list(APPEND LOCKSTEP_CUDA_FLAGS -Werror all-warnings)
endif()

# lockstep_cuda_library(<name> SOURCES <files> HEADERS <files> MAP <file> DEPS <static libraries>)
#
# Makes target <name>: the library lib<name>.so in the calling folder's build folder, and beside it <name>.kernels.txt,
# the registers of each kernel. MAP lists the symbols that it shows.
function(lockstep_cuda_library name)
  cmake_parse_arguments(ARG "" "MAP" "SOURCES;HEADERS;DEPS" ${ARGN})
  set(objects "")
  set(reports "")
  foreach(source ${ARG_SOURCES})
    get_filename_component(stem "${source}" NAME_WE)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.${stem}.o")
    add_custom_command(OUTPUT "${object}" "${object}.txt" DEPENDS "${source}" ${ARG_HEADERS}
      COMMAND "${CMAKE_COMMAND}" "-DOUT=${object}" "-DREPORT=${object}.txt"
        "-DCOMMAND=${CMAKE_CXX_COMPILER_LAUNCHER};${LOCKSTEP_NVCC};${LOCKSTEP_CUDA_FLAGS};-I${PROJECT_SOURCE_DIR};-c;${source};-o;${object}"
        -P "${PROJECT_SOURCE_DIR}/cmake/run_nvcc.cmake"
      COMMENT "Building CUDA object ${stem}.cu" VERBATIM)
    list(APPEND objects "${object}")
    list(APPEND reports "${object}.txt")
  endforeach()
  set(archives "")
  foreach(dependency ${ARG_DEPS})
    list(APPEND archives "$<TARGET_FILE:${dependency}>")
  endforeach()
  set(library "${CMAKE_CURRENT_BINARY_DIR}/lib${name}.so")
  add_custom_command(OUTPUT "${library}" DEPENDS ${objects} ${ARG_DEPS} "${ARG_MAP}"
    COMMAND "${LOCKSTEP_NVCC}" ${LOCKSTEP_CUDA_LINK} -shared -cudart static -Xcompiler -static-libstdc++,-static-libgcc -Xlinker "--version-script=${ARG_MAP},--no-undefined,--strip-debug"
      -o "${library}" ${objects} ${archives}
    COMMAND "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/kernels.py" --out "${name}.kernels.txt" ${reports}
    COMMENT "Linking CUDA library lib${name}.so" VERBATIM COMMAND_EXPAND_LISTS)
  add_custom_target(${name} DEPENDS "${library}")
endfunction()
