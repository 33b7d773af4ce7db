# Writes a source with the function FUNCTION of NAMESPACE, which returns a hash of FILES and SALT: what a library and its
# users have to share (core/columnar/files/arrow_library.h, core/device/library.h).
list(SORT FILES)
set(all "${SALT}")
foreach(file ${FILES})
  file(SHA256 "${file}" hash)
  file(RELATIVE_PATH name "${ROOT}" "${file}")
  string(APPEND all "\n${name} ${hash}")
endforeach()
string(SHA256 id "${all}")
string(SUBSTRING "${id}" 0 16 id)
file(WRITE "${OUT}" "namespace ${NAMESPACE} {
const char* ${FUNCTION}();
const char* ${FUNCTION}() { return \"${id}\"; }
}  // namespace ${NAMESPACE}
")
