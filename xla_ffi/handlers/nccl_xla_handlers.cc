// As nccl_handlers.cc, but NCCL's communicator is the one that XLA has for its own collectives between the
// same devices. Ranks compare programs before XLA is asked for it, since XLA waits for all of them then.
#include <memory>
#include <utility>
#include <vector>

#include "handlers/arguments.h"
#include "handlers/cuda_devices.h"
#include "handlers/device_errors.h"
#include "handlers/make_handlers.h"
#include "handlers/nccl_calls.h"
#include "handlers/xla_library.h"
#include "nccl/backend.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

// The frame that this thread's handler runs in, and the error of XLA's that it has been given. Such an
// error goes back as it is: what it holds is read in different ways by different versions of XLA.
thread_local XLA_FFI_CallFrame* frame_now = nullptr;
thread_local XLA_FFI_Error* error_given = nullptr;

struct NcclXlaPlatform {
  struct Site {
    JaxccompXlaGroups groups() const {
      return {coordinates.data(), static_cast<int64_t>(coordinates.size()),
              site->spec().group_size};
    }
    std::unique_ptr<nccl::NcclCallSite> site;
    std::vector<int64_t> coordinates;   // of its groups, in the mesh
  };
  using State = FfiState<NcclXlaPlatform>;

  static Result<std::unique_ptr<Site>> Make(const ffi::Dictionary& attributes) {
    if (!XlaLibrary::Get().status().ok()) return XlaLibrary::Get().status();
    Result<OpSpec> spec = SpecFromAttributes(attributes);
    if (!spec.ok()) return spec.status();
    const auto coordinates = attributes.get<ffi::Span<const int64_t>>("coordinates");
    if (!coordinates.has_value() || coordinates->size() != spec->groups.size()) {
      return Status(Code::kInvalidArgument,
                    spec->ToString() + ": it does not say where its groups lie in the mesh: it was "
                                       "lowered by another version of jaxccomp");
    }
    spec->xla_communicator = true;
    Result<std::unique_ptr<nccl::NcclCallSite>> site = nccl::NcclCallSite::Make(std::move(*spec));
    if (!site.ok()) return site.status();
    auto made = std::make_unique<Site>();
    made->site = std::move(*site);
    made->coordinates.assign(coordinates->begin(), coordinates->end());
    return made;
  }
  static void Forget(Site& site) { nccl::Backend::Get().Forget(*site.site); }

  template <typename Handler>
  static XLA_FFI_Error* Call(XLA_FFI_CallFrame* frame, Handler* handler) {
    frame_now = frame;
    error_given = nullptr;
    XLA_FFI_Error* const own = handler->Call(frame);
    return own != nullptr ? own : error_given;
  }

  static ffi::Error Prepare(State* state, ffi::RunId run, int32_t ordinal, ffi::RemainingArgs,
                            ffi::RemainingRets) {
    // Where XLA does not tell the device yet, a lone one is meant; with several, they join later.
    if (ordinal < 0) ordinal = FindOnlyCudaOrdinal().value_or(-1);
    if (ordinal >= 0) {
      const Status status = JoinNccl(*state->site->site, nullptr, run, ordinal);
      if (!status.ok()) return ToError(status);
    }
    const JaxccompXlaGroups groups = state->site->groups();
    error_given = static_cast<XLA_FFI_Error*>(XlaLibrary::Get().request(frame_now, &groups));
    return ffi::Error::Success();
  }
  static ffi::Error Initialize(State* state, ffi::RunId run, int32_t ordinal, ffi::RemainingArgs,
                               ffi::RemainingRets) {
    if (ordinal < 0) return ffi::Error::Success();
    return ToError(JoinNccl(*state->site->site, nullptr, run, ordinal));
  }
  static ffi::Error Execute(State* state, void* stream, ffi::RunId run, int32_t ordinal,
                            ffi::RemainingArgs arguments, ffi::RemainingRets results) {
    const JaxccompXlaGroups groups = state->site->groups();
    void* communicator = nullptr;
    error_given =
        static_cast<XLA_FFI_Error*>(XlaLibrary::Get().get(frame_now, &groups, &communicator));
    if (error_given != nullptr) return ffi::Error::Success();
    const Status status =
        RunNccl(*state->site->site, stream, run, ordinal, arguments, results, communicator);
    NoteDeviceCall(status);
    return ToError(status);
  }
};

}  // namespace

const PlatformHandlers& NcclXlaHandlers() { return MakeHandlers<NcclXlaPlatform>(); }

}  // namespace jaxccomp
