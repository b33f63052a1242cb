// A library as xla_ffi/xla_communicators/library.h describes it, which gives out the communicators that a
// test has put into the context of its call frames (fake_xla.h).
#include <algorithm>
#include <string>

#include "fake_xla.h"
#include "xla_communicators/library.h"

namespace {

XLA_FFI_Error* Refused(XLA_FFI_CallFrame* frame, const JaxccompXlaGroups& groups) {
  std::vector<int64_t>& asked = frame->ctx->asked_places;
  asked.assign(groups.coordinates, groups.coordinates + groups.count);
  asked.push_back(groups.group_size);
  if (frame->ctx->refusal.empty()) return nullptr;
  return new XLA_FFI_Error{XLA_FFI_Error_Code_UNIMPLEMENTED, frame->ctx->refusal};
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))

EXPORT const char* jaxccomp_xla_version() { return JAXCCOMP_VERSION; }
EXPORT void* jaxccomp_xla_request(void* frame, const JaxccompXlaGroups* groups) {
  auto* const own = static_cast<XLA_FFI_CallFrame*>(frame);
  ++own->ctx->requests;
  return Refused(own, *groups);
}
EXPORT void* jaxccomp_xla_get(void* frame, const JaxccompXlaGroups* groups, void** communicator) {
  auto* const own = static_cast<XLA_FFI_CallFrame*>(frame);
  *communicator = own->ctx->communicator;
  return Refused(own, *groups);
}
