// What libjaxccomp_xla.so offers: the communicators that XLA has made for its own collectives, through
// the collectives extension of its FFI. It is compiled with the headers of a newer jaxlib than the engine
// (0.11, the first with the extension), so that only plain C passes between them: a call frame of XLA's
// goes in, an error of XLA's comes out, which the handler returns as it is. Null: all went well.
#pragma once

#include <stdint.h>

// The groups of devices that communicate, in XLA's numbering: coordinates in the program's mesh.
typedef struct JaxccompXlaGroups {
  const int64_t* coordinates;   // one group after the other
  int64_t count;           // of coordinates
  int64_t group_size;
} JaxccompXlaGroups;

extern "C" {

// Of jaxccomp; the engine takes its own only.
const char* jaxccomp_xla_version(void);
// In the Prepare stage: XLA makes the communicator, or finds it, before the program runs.
void* jaxccomp_xla_request(void* frame, const JaxccompXlaGroups* groups);
// In the stages after it: the communicator, an ncclComm_t that stays XLA's.
void* jaxccomp_xla_get(void* frame, const JaxccompXlaGroups* groups, void** communicator);

}  // extern "C"
