// Makes the FFI handlers of an XLA platform from a class with
//
//   using Site = ...;                                             its state of a call site
//   static Result<std::unique_ptr<Site>> Make(const xla::ffi::Dictionary& attributes);
//   static void Forget(Site& site);
//   static ... Execute(State* state, [void* stream,] RunId, int32_t ordinal, RemainingArgs, RemainingRets);
//
// If Execute has the parameter `stream`, it gets the stream of its call.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "handlers/call_sites.h"
#include "handlers/platform_handlers.h"
#include "xla/ffi/api/ffi.h"

namespace jaxccomp {

// XLA's state of a compiled call site. Each platform has a type of its own, because XLA's plugins have separate type
// registries and so give one type different ids.
template <typename Platform>
struct FfiState {
  explicit FfiState(std::unique_ptr<typename Platform::Site> s) : site(std::move(s)) {}
  ~FfiState() { Platform::Forget(*site); }
  FfiState(const FfiState&) = delete;
  FfiState& operator=(const FfiState&) = delete;

  static inline xla::ffi::TypeId id = {};
  const std::unique_ptr<typename Platform::Site> site;
};

template <typename Platform>
struct FfiStages {
  using State = FfiState<Platform>;
  using Made = xla::ffi::ErrorOr<std::unique_ptr<State>>;

  static Made Make(xla::ffi::Dictionary attributes) {
    Result<std::unique_ptr<typename Platform::Site>> site = Platform::Make(attributes);
    if (!site.ok()) return xla::ffi::Unexpected(ToError(site.status()));
    return std::make_unique<State>(std::move(*site));
  }

  template <typename Function>
  static auto* Bind(Function function) {
    namespace ffi = xla::ffi;
    constexpr bool kOnStream =
        std::is_invocable_v<Function, State*, void*, ffi::RunId, int32_t, ffi::RemainingArgs,
                            ffi::RemainingRets>;
    if constexpr (kOnStream) {
      return ffi::Ffi::Bind()
          .template Ctx<ffi::State<State>>()
          .template Ctx<ffi::PlatformStream<void*>>()
          .template Ctx<ffi::RunId>()
          .template Ctx<ffi::DeviceOrdinal>()
          .RemainingArgs()
          .RemainingRets()
          .To(function)
          .release();
    } else {
      return ffi::Ffi::Bind()
          .template Ctx<ffi::State<State>>()
          .template Ctx<ffi::RunId>()
          .template Ctx<ffi::DeviceOrdinal>()
          .RemainingArgs()
          .RemainingRets()
          .To(function)
          .release();
    }
  }
  static XLA_FFI_Error* Instantiate(XLA_FFI_CallFrame* frame) {
    static auto* handler = xla::ffi::Ffi::BindInstantiate().Attrs().To(Make).release();
    return handler->Call(frame);
  }
  static XLA_FFI_Error* Execute(XLA_FFI_CallFrame* frame) {
    static auto* handler = Bind(&Platform::Execute);
    return handler->Call(frame);
  }
};

template <typename Platform>
const PlatformHandlers& MakeHandlers() {
  using Stages = FfiStages<Platform>;
  static constexpr xla::ffi::TypeInfo kTypeInfo = xla::ffi::MakeTypeInfo<FfiState<Platform>>();
  static const PlatformHandlers handlers = {.instantiate = Stages::Instantiate,
                                            .execute = Stages::Execute,
                                            .type_id = &FfiState<Platform>::id,
                                            .type_info = &kTypeInfo};
  return handlers;
}

}  // namespace jaxccomp
