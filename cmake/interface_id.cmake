# Writes a source with the function ArrowInterfaceId (core/columnar/files/arrow_library.h): a hash of FILES and SALT.
list(SORT FILES)
set(all "${SALT}")
foreach(file ${FILES})
  file(SHA256 "${file}" hash)
  file(RELATIVE_PATH name "${ROOT}" "${file}")
  string(APPEND all "\n${name} ${hash}")
endforeach()
string(SHA256 id "${all}")
string(SUBSTRING "${id}" 0 16 id)
file(WRITE "${OUT}" "namespace lockstep::columnar {
const char* ArrowInterfaceId();
const char* ArrowInterfaceId() { return \"${id}\"; }
}  // namespace lockstep::columnar
")
