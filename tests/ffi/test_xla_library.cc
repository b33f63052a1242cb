// libjaxccomp_xla.so, with a fake of XLA's collectives extension, on the headers that it is compiled with.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/collectives_c_api.h"
#include "xla_communicators/library.h"

struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string message;
};

// One stage of one call: the extensions that are attached to it.
struct XLA_FFI_InvokeContext {
  const XLA_FFI_Extension* extensions = nullptr;
};

// What the fake extension was asked for.
struct XLA_FFI_CollectivesState {
  std::vector<std::vector<int64_t>> groups;
  int64_t id = -1;
  XLA_FFI_CollectiveGroupMode mode = XLA_FFI_GROUP_CROSS_REPLICA;
  int requests = 0, gets = 0;
  bool fails = false;
};

namespace jaxccomp {
namespace {

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->errc, args->message};
}

XLA_FFI_Error* FindExtension(XLA_FFI_InvokeContext_FindExtension_Args* args) {
  const XLA_FFI_Extension* each = args->ctx->extensions;
  while (each != nullptr && each->id.extension_type != args->extension_type) each = each->next;
  args->extension = each;
  return nullptr;
}

template <typename Args>
XLA_FFI_Error* Note(const XLA_FFI_Collectives_Extension* self, const Args& args, int* calls) {
  XLA_FFI_CollectivesState& state = *self->state;
  ++*calls;
  state.groups.clear();
  for (size_t i = 0; i < args.num_groups; ++i) {
    state.groups.emplace_back(args.groups[i].ids, args.groups[i].ids + args.groups[i].size);
  }
  state.id = args.communication_id;
  state.mode = args.group_mode;
  if (!state.fails) return nullptr;
  return new XLA_FFI_Error{XLA_FFI_Error_Code_FAILED_PRECONDITION, "the clique was aborted"};
}

struct Fake {
  XLA_FFI_CollectivesState state;
  XLA_FFI_Collectives_Extension collectives = {};
  XLA_FFI_Extension other = {sizeof(XLA_FFI_Extension), {7, 0, 1}, nullptr};
  XLA_FFI_InvokeContext context;
  XLA_FFI_Api api = {};
  XLA_FFI_CallFrame frame = {};

  Fake() {
    collectives.extension_base = {
        sizeof(XLA_FFI_Collectives_Extension),
        {XLA_FFI_Extension_Collectives, XLA_FFI_Extension_Collectives_MajorVersion,
         XLA_FFI_Extension_Collectives_MinorVersion},
        nullptr};
    collectives.state = &state;
    collectives.request_communicator = [](const XLA_FFI_Collectives_Extension* self,
                                          XLA_FFI_Communicator_Request_Args* args) {
      CHECK_EQ(args->struct_size, size_t{XLA_FFI_Communicator_Request_Args_STRUCT_SIZE});
      return Note(self, *args, &self->state->requests);
    };
    collectives.get_communicator = [](const XLA_FFI_Collectives_Extension* self,
                                      XLA_FFI_Communicator_Get_Args* args) {
      CHECK_EQ(args->struct_size, size_t{XLA_FFI_Communicator_Get_Args_STRUCT_SIZE});
      XLA_FFI_Error* const error = Note(self, *args, &self->state->gets);
      if (error == nullptr) args->communicator = reinterpret_cast<XLA_FFI_Communicator*>(0xabc0);
      return error;
    };
    other.next = &collectives.extension_base;
    context.extensions = &other;
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.XLA_FFI_Error_Create = CreateError;
    api.XLA_FFI_InvokeContext_FindExtension = FindExtension;
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &api;
    frame.ctx = &context;
  }

  // The errors of both calls: "" where there is none.
  std::string Request(const JaxccompXlaGroups& groups) {
    return Text(jaxccomp_xla_request(&frame, &groups));
  }
  std::string Get(const JaxccompXlaGroups& groups, void** communicator) {
    return Text(jaxccomp_xla_get(&frame, &groups, communicator));
  }
  static std::string Text(void* given) {
    const std::unique_ptr<XLA_FFI_Error> error(static_cast<XLA_FFI_Error*>(given));
    return error == nullptr ? "" : error->message;
  }
};

const std::vector<int64_t> kPlaces = {0, 2, 1, 3};
const JaxccompXlaGroups kGroups = {kPlaces.data(), 4, 2};

TEST(XlaLibraryGivesCommunicators) {
  CHECK_EQ(std::string(jaxccomp_xla_version()), JAXCCOMP_VERSION);
  Fake fake;
  CHECK_EQ(fake.Request(kGroups), "");
  void* communicator = nullptr;
  CHECK_EQ(fake.Get(kGroups, &communicator), "");
  CHECK(communicator == reinterpret_cast<void*>(0xabc0));
  CHECK_EQ(fake.state.requests, 1);
  CHECK_EQ(fake.state.gets, 1);
  // The id of XLA's own collectives, in the numbering of the mesh.
  CHECK_EQ(fake.state.id, 0);
  CHECK(fake.state.mode == XLA_FFI_GROUP_FLATTENED_ID);
  CHECK(fake.state.groups == std::vector<std::vector<int64_t>>({{0, 2}, {1, 3}}));
}

TEST(XlaLibraryPassesErrorsOn) {
  Fake fake;
  fake.state.fails = true;
  void* communicator = nullptr;
  CHECK_EQ(fake.Request(kGroups), "the clique was aborted");
  CHECK_EQ(fake.Get(kGroups, &communicator), "the clique was aborted");
  CHECK(communicator == nullptr);
}

TEST(XlaLibraryNeedsTheExtension) {
  const auto refuses = [](Fake& fake, const std::string& why) {
    void* communicator = nullptr;
    CHECK(fake.Request(kGroups).find(why) != std::string::npos);
    CHECK(fake.Get(kGroups, &communicator).find(why) != std::string::npos);
    CHECK_EQ(fake.state.requests + fake.state.gets, 0);
  };
  Fake old;
  old.api.struct_size = offsetof(XLA_FFI_Api, XLA_FFI_InvokeContext_FindExtension);
  refuses(old, "0.11 is the first that does");
  Fake none;
  none.other.next = nullptr;
  refuses(none, "XLA gives no communicators in this program");
  Fake shorter;
  shorter.collectives.extension_base.struct_size =
      offsetof(XLA_FFI_Collectives_Extension, get_communicator);
  refuses(shorter, "of its extension");
  Fake newer;
  ++newer.collectives.extension_base.id.major_version;
  refuses(newer, "of its extension");
  // Later minor versions have more, behind what is used; the first one has less.
  for (int minor : {1, 9}) {
    Fake other;
    other.collectives.extension_base.id.minor_version = minor;
    other.collectives.extension_base.struct_size =
        offsetof(XLA_FFI_Collectives_Extension, get_communicator) + sizeof(void*);
    CHECK_EQ(other.Request(kGroups), "");
  }
}

}  // namespace
}  // namespace jaxccomp
