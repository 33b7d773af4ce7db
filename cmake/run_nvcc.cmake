# Runs COMMAND, which writes OUT, and keeps its messages, among them ptxas' report, in REPORT.
execute_process(COMMAND ${COMMAND} OUTPUT_VARIABLE messages ERROR_VARIABLE messages RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  file(REMOVE "${OUT}")
  message(FATAL_ERROR "${messages}")
endif()
file(WRITE "${REPORT}" "${messages}")
