# libjaxccomp_xla.so, which gives out XLA's NCCL communicators (xla_ffi/xla_communicators). It takes the headers of a
# jaxlib with the collectives extension, newer than the one that the engine is compiled with; they never
# meet in one library. Where JAXCCOMP_XLA_INCLUDE has none it is left out.
set(JAXCCOMP_XLA_INCLUDE "" CACHE PATH "The include folder of jaxlib 0.11 or newer, for libjaxccomp_xla.so")
if(EXISTS "${JAXCCOMP_XLA_INCLUDE}/xla/ffi/api/collectives_c_api.h")
  add_library(jaxccomp_xla SHARED xla_ffi/xla_communicators/library.cc)
  target_include_directories(jaxccomp_xla PRIVATE xla_ffi)
  target_include_directories(jaxccomp_xla SYSTEM PRIVATE "${JAXCCOMP_XLA_INCLUDE}")
  target_compile_definitions(jaxccomp_xla PRIVATE JAXCCOMP_VERSION="${JAXCCOMP_VERSION}")
else()
  message(STATUS "libjaxccomp_xla.so is left out, and with it nccl_communicator=\"xla\": "
                 "JAXCCOMP_XLA_INCLUDE ('${JAXCCOMP_XLA_INCLUDE}') is not the include folder of "
                 "jaxlib 0.11 or newer")
endif()
