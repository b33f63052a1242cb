// As nccl_handlers.cc, but NCCL's communicator is the one that XLA has for its own collectives between the
// same devices. Ranks compare programs before XLA is asked for it, since XLA waits for all of them then.
#include "nccl_xla_handlers.h"

#include <memory>
#include <utility>
#include <vector>

#include "arguments.h"
#include "call_site.h"
#include "cuda_devices.h"
#include "device_errors.h"
#include "nccl/backend.h"
#include "nccl_calls.h"
#include "xla_library.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

struct BorrowingCallSite {
  static ffi::TypeId id;
  BorrowingCallSite(std::unique_ptr<nccl::CallSite> s, std::vector<int64_t> p)
      : site(std::move(s)), places(std::move(p)) {}
  ~BorrowingCallSite() { nccl::Backend::Get().Forget(*site); }
  BorrowingCallSite(const BorrowingCallSite&) = delete;
  BorrowingCallSite& operator=(const BorrowingCallSite&) = delete;
  JaxccompXlaGroups groups() const {
    return {places.data(), static_cast<int64_t>(places.size()), site->spec().group_size};
  }
  std::unique_ptr<nccl::CallSite> site;
  std::vector<int64_t> places;
};

ffi::TypeId BorrowingCallSite::id = {};

// The frame that this thread's handler runs in, and the error of XLA's that it has been given. Such an
// error goes back as it is: what it holds is read in different ways by different versions of XLA.
thread_local XLA_FFI_CallFrame* frame_now = nullptr;
thread_local XLA_FFI_Error* error_given = nullptr;

template <typename Handler>
XLA_FFI_Error* CallIn(XLA_FFI_CallFrame* frame, Handler* handler) {
  frame_now = frame;
  error_given = nullptr;
  XLA_FFI_Error* const own = handler->Call(frame);
  return own != nullptr ? own : error_given;
}

Result<std::unique_ptr<BorrowingCallSite>> CallSiteFrom(const ffi::Dictionary& attributes) {
  if (!XlaLibrary::Get().status().ok()) return XlaLibrary::Get().status();
  Result<OpSpec> spec = SpecFromAttributes(attributes);
  if (!spec.ok()) return spec.status();
  const auto places = attributes.get<ffi::Span<const int64_t>>("places");
  if (!places.has_value() || places->size() != spec->groups.size()) {
    return Status(Code::kInvalidArgument,
                  spec->ToString() + ": it does not say where its groups lie in the mesh: it was "
                                     "lowered by another version of jaxccomp");
  }
  spec->borrows = true;
  Result<std::unique_ptr<nccl::CallSite>> site = nccl::CallSite::Make(std::move(*spec));
  if (!site.ok()) return site.status();
  return std::make_unique<BorrowingCallSite>(
      std::move(*site), std::vector<int64_t>(places->begin(), places->end()));
}

ffi::ErrorOr<std::unique_ptr<BorrowingCallSite>> MakeCallSite(ffi::Dictionary attributes) {
  Result<std::unique_ptr<BorrowingCallSite>> made = CallSiteFrom(attributes);
  if (!made.ok()) return ffi::Unexpected(ToError(made.status()));
  return std::move(*made);
}

ffi::Error Request(BorrowingCallSite* call_site, ffi::RunId run, int32_t ordinal,
                   ffi::RemainingArgs, ffi::RemainingRets) {
  // Where XLA does not tell the device yet, a lone one is meant; with several, they join later.
  if (ordinal < 0) ordinal = FindOnlyCudaOrdinal().value_or(-1);
  if (ordinal >= 0) {
    const Status status = JoinNccl(*call_site->site, nullptr, run, ordinal);
    if (!status.ok()) return ToError(status);
  }
  const JaxccompXlaGroups groups = call_site->groups();
  error_given = static_cast<XLA_FFI_Error*>(XlaLibrary::Get().request(frame_now, &groups));
  return ffi::Error::Success();
}

ffi::Error Join(BorrowingCallSite* call_site, ffi::RunId run, int32_t ordinal, ffi::RemainingArgs,
                ffi::RemainingRets) {
  if (ordinal < 0) return ffi::Error::Success();
  return ToError(JoinNccl(*call_site->site, nullptr, run, ordinal));
}

ffi::Error Run(BorrowingCallSite* call_site, void* stream, ffi::RunId run, int32_t ordinal,
               ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  const JaxccompXlaGroups groups = call_site->groups();
  void* communicator = nullptr;
  error_given =
      static_cast<XLA_FFI_Error*>(XlaLibrary::Get().get(frame_now, &groups, &communicator));
  if (error_given != nullptr) return ffi::Error::Success();
  const Status status =
      RunNccl(*call_site->site, stream, run, ordinal, arguments, results, communicator);
  NoteDeviceCall(status);
  return ToError(status);
}

XLA_FFI_Error* Instantiate(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInstantiate().Attrs().To(MakeCallSite).release();
  return handler->Call(frame);
}

XLA_FFI_Error* Prepare(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindPrepare()
                             .Ctx<ffi::State<BorrowingCallSite>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Request)
                             .release();
  return CallIn(frame, handler);
}

XLA_FFI_Error* Initialize(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInitialize()
                             .Ctx<ffi::State<BorrowingCallSite>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Join)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* Execute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<BorrowingCallSite>>()
                             .Ctx<ffi::PlatformStream<void*>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Run)
                             .release();
  return CallIn(frame, handler);
}

constexpr ffi::TypeInfo kTypeInfo = ffi::MakeTypeInfo<BorrowingCallSite>();

}  // namespace

const PlatformHandlers& NcclXlaHandlers() {
  static const PlatformHandlers handlers = {.instantiate = Instantiate,
                                            .execute = Execute,
                                            .type_id = &BorrowingCallSite::id,
                                            .type_info = &kTypeInfo,
                                            .initialize = Initialize,
                                            .prepare = Prepare};
  return handlers;
}

}  // namespace jaxccomp
