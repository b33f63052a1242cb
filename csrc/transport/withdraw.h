// How transports give an operation its memory back (Transport::Cancel).
#pragma once

#include "common/completion.h"
#include "common/status.h"

namespace jaxccomp {

// Who pulls a payload that is not announced (any more) is told this.
inline Status WithdrawnError() {
  return {Code::kAborted, "the payload does not come any more: its sender's operation has failed"};
}

// Of payloads that are being received, by number: the one for `done` ends with `why`, and what comes of it
// afterwards is dropped. False: there is none.
template <typename Incoming>
bool WithdrawFrom(Incoming* all, Completion* done, const Status& why) {
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
