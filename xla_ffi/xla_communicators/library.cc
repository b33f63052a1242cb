#include "xla_communicators/library.h"

#include <cstddef>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/collectives_c_api.h"

namespace {

// XLA's own collectives, but for some between pairs, have this one: theirs is the communicator then.
constexpr int64_t kCommunicationId = 0;

XLA_FFI_Error* Error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const std::string& text) {
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = text.c_str();
  args.errc = code;
  return api->XLA_FFI_Error_Create(&args);
}

// Those of the first version of the extension; what later ones have added is not used.
constexpr size_t kLeastBytes = offsetof(XLA_FFI_Collectives_Extension, get_communicator) +
                               sizeof(XLA_FFI_Communicator_Get*);
constexpr size_t kLeastApiBytes = offsetof(XLA_FFI_Api, XLA_FFI_InvokeContext_FindExtension) +
                                  sizeof(XLA_FFI_InvokeContext_FindExtension*);

XLA_FFI_Error* Find(XLA_FFI_CallFrame* frame, const XLA_FFI_Collectives_Extension** found) {
  const XLA_FFI_Api* const api = frame->api;
  if (api->struct_size < kLeastApiBytes) {
    return Error(api, XLA_FFI_Error_Code_UNIMPLEMENTED,
                 "this jaxlib gives no communicators to others; 0.11 is the first that does. Set "
                 "the option nccl_communicator=\"own\"");
  }
  XLA_FFI_InvokeContext_FindExtension_Args args = {};
  args.struct_size = XLA_FFI_InvokeContext_FindExtension_Args_STRUCT_SIZE;
  args.ctx = frame->ctx;
  args.extension_type = XLA_FFI_Extension_Collectives;
  if (XLA_FFI_Error* error = api->XLA_FFI_InvokeContext_FindExtension(&args)) return error;
  const XLA_FFI_Extension* const extension = args.extension;
  if (extension == nullptr) {
    return Error(api, XLA_FFI_Error_Code_UNIMPLEMENTED,
                 "XLA gives no communicators in this program. Set the option "
                 "nccl_communicator=\"own\"");
  }
  if (extension->id.major_version != XLA_FFI_Extension_Collectives_MajorVersion ||
      extension->struct_size < kLeastBytes) {
    return Error(api, XLA_FFI_Error_Code_UNIMPLEMENTED,
                 "XLA gives communicators by version " +
                     std::to_string(extension->id.major_version) + "." +
                     std::to_string(extension->id.minor_version) +
                     " of its extension, and this jaxccomp knows " +
                     std::to_string(XLA_FFI_Extension_Collectives_MajorVersion) + "." +
                     std::to_string(XLA_FFI_Extension_Collectives_MinorVersion) +
                     ". Set the option nccl_communicator=\"own\"");
  }
  *found = reinterpret_cast<const XLA_FFI_Collectives_Extension*>(extension);
  return nullptr;
}

std::vector<XLA_FFI_ReplicaGroup> GroupsOf(const JaxccompXlaGroups& given) {
  std::vector<XLA_FFI_ReplicaGroup> groups;
  for (int64_t first = 0; first < given.count; first += given.group_size) {
    groups.push_back({given.coordinates + first, static_cast<size_t>(given.group_size)});
  }
  return groups;
}

// What the arguments of both calls begin with.
template <typename Args>
Args ArgsFor(const std::vector<XLA_FFI_ReplicaGroup>& groups, size_t struct_size) {
  Args args = {};
  args.struct_size = struct_size;
  args.group_mode = XLA_FFI_GROUP_FLATTENED_ID;
  args.groups = groups.data();
  args.num_groups = groups.size();
  args.communication_id = kCommunicationId;
  return args;
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))

EXPORT const char* jaxccomp_xla_version() { return JAXCCOMP_VERSION; }

EXPORT void* jaxccomp_xla_request(void* frame, const JaxccompXlaGroups* groups) {
  const XLA_FFI_Collectives_Extension* extension = nullptr;
  if (XLA_FFI_Error* error = Find(static_cast<XLA_FFI_CallFrame*>(frame), &extension)) return error;
  const std::vector<XLA_FFI_ReplicaGroup> all = GroupsOf(*groups);
  auto args = ArgsFor<XLA_FFI_Communicator_Request_Args>(
      all, XLA_FFI_Communicator_Request_Args_STRUCT_SIZE);
  return extension->request_communicator(extension, &args);
}

EXPORT void* jaxccomp_xla_get(void* frame, const JaxccompXlaGroups* groups, void** communicator) {
  const XLA_FFI_Collectives_Extension* extension = nullptr;
  if (XLA_FFI_Error* error = Find(static_cast<XLA_FFI_CallFrame*>(frame), &extension)) return error;
  const std::vector<XLA_FFI_ReplicaGroup> all = GroupsOf(*groups);
  auto args =
      ArgsFor<XLA_FFI_Communicator_Get_Args>(all, XLA_FFI_Communicator_Get_Args_STRUCT_SIZE);
  XLA_FFI_Error* const error = extension->get_communicator(extension, &args);
  *communicator = args.communicator;
  return error;
}
