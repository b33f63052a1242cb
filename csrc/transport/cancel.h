// How transports give an operation its memory back (Transport::Cancel).
#pragma once

#include "common/completion.h"
#include "common/status.h"

namespace jaxccomp {

// The error of a pull whose payload has been cancelled, or was never announced.
inline Status CancelledError() {
  return {Code::kAborted, "the sender has cancelled the payload: its operation has failed"};
}

// Cancels the pull of `done` with the error `why`. `all`: the payloads that are being received, by number. Bytes that
// arrive later are dropped. Returns false if `done` pulls none of them.
template <typename Incoming>
bool CancelPull(Incoming* all, Completion* done, const Status& why) {
  for (auto& [number, incoming] : *all) {
    if (incoming.done != done) continue;
    incoming.into.clear();
    incoming.done = nullptr;
    done->Done(why);
    return true;
  }
  return false;
}

}  // namespace jaxccomp
