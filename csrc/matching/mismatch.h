// Error texts for ranks that run different operations or launches.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "matching/communicator.h"
#include "transport/transport.h"

namespace jaxccomp {

// The operation of a header: "bcast(float32[4], root=0) at train.py:9 (16 bytes)".
std::string Describe(const Header& header);
// The operation without the bytes: "bcast(float32[4], root=0) at train.py:9".
std::string TextOf(const Header& header);

// The advice at the end of a mismatch error.
inline constexpr std::string_view kMismatchAdvice =
    "All ranks must run the same collectives with the same shapes, types, root and codec. If "
    "programs differ between ranks on purpose, use communicator.ordered(), which matches "
    "operations by program order.";

// This rank runs `mine`; the sender of `header` runs another operation.
Status MismatchError(const Endpoint& endpoint, const std::string& mine, const Header& header);

// Threads of different names have made the launch with this number on two ranks.
Status ThreadError(const Endpoint& endpoint, const Launch& launch, const Header& header);

// Different lines of the Python program have made the launch with this number on two ranks.
Status PlaceError(const Endpoint& endpoint, const Launch& launch, const Header& header);

// In program order, this rank and the sender are in different steps (jaxccomp.step).
Status StepError(const Endpoint& endpoint, const std::string& text, const Header& mine,
                 const Header& header);

// This rank and the sender have launched one program a different number of times.
Status SkippedError(const Endpoint& endpoint, const Launch& launch, const Header& header);

// A thread launches `text` while another launch on the same communicator is running.
Status OverlapError(const Endpoint& endpoint, const std::string& text);

// The sender of `header` waits in an operation that this rank has skipped.
Status LeftError(const Endpoint& endpoint, const Header& header);

}  // namespace jaxccomp
