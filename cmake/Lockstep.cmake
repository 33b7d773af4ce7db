# One helper for every folder of the core: a static library of its *.cc files, a test binary of its *_test.cc and a
# benchmark binary of its *_benchmark.cc, all with the same flags.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")
add_compile_options(-Wall -Wextra -Wno-unused-parameter)

if(LOCKSTEP_SANITIZE)
  # Sanitized tests keep their assertions and their frames.
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g -fno-omit-frame-pointer")
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()

# lockstep_library(<name> [DEPS <libraries>] [TEST_DEPS <libraries>])
#
# Makes lockstep_<name> of the folder that calls it. Tests see the folder's deps, TEST_DEPS and GoogleTest.
function(lockstep_library name)
  cmake_parse_arguments(ARG "" "" "DEPS;TEST_DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "*.cc")
  set(tests ${sources})
  set(benchmarks ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benchmarks INCLUDE REGEX "_benchmark\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|benchmark)\\.cc$")

  if(sources)
    add_library(lockstep_${name} STATIC ${sources})
    set(link PUBLIC)
  else()
    add_library(lockstep_${name} INTERFACE)
    set(link INTERFACE)
  endif()
  target_include_directories(lockstep_${name} ${link} "${PROJECT_SOURCE_DIR}")
  target_link_libraries(lockstep_${name} ${link} ${ARG_DEPS} Threads::Threads)

  if(LOCKSTEP_BUILD_TESTS AND tests)
    add_executable(lockstep_${name}_test ${tests})
    target_link_libraries(lockstep_${name}_test lockstep_${name} ${ARG_TEST_DEPS} GTest::gmock GTest::gtest_main)
    target_compile_options(lockstep_${name}_test PRIVATE -O1)  # half the time to compile
    add_test(NAME ${name} COMMAND lockstep_${name}_test)
    set_tests_properties(${name} PROPERTIES TIMEOUT 900)
  endif()
  if(LOCKSTEP_BUILD_BENCHMARKS AND benchmarks)
    add_executable(lockstep_${name}_benchmark ${benchmarks})
    target_link_libraries(lockstep_${name}_benchmark lockstep_${name} ${ARG_TEST_DEPS} benchmark::benchmark)
  endif()
endfunction()
