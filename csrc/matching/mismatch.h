// What to say where ranks run different things: all errors of matching.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "matching/communicator.h"
#include "transport/transport.h"

namespace jaxccomp {

// "bcast(float32[4], root=0) at train.py:9 (16 bytes)".
std::string Describe(const Header& header);
// The same without the bytes.
std::string TextOf(const Header& header);

// What a mismatch error ends with.
inline constexpr std::string_view kMismatchAdvice =
    "All ranks must run the same collectives with the same shapes, types, root and codec. If "
    "programs differ between ranks on purpose, use communicator.ordered(), which matches "
    "operations by program order.";

// The same where operations match by program order already.
inline constexpr std::string_view kOrderedMismatchAdvice =
    "On a communicator in program order the n-th collective of one member belongs to the n-th of "
    "every other, so all members must call the same collectives in the same order, with the same "
    "shapes, types, root and codec. Only send, recv and sendrecv concern two ranks alone; for "
    "collectives of some members use communicator.split().";

// What to say when this rank runs `mine` and another sent `header`.
Status MismatchError(const Endpoint& endpoint, const std::string& mine, const Header& header);

// What to say when threads of different names have made the launches of one number.
Status ThreadError(const Endpoint& endpoint, const Launch& launch, const Header& header);

// What to say when two launches of one number are made at different places of the Python program.
Status PlaceError(const Endpoint& endpoint, const Launch& launch, const Header& header);

// What to say when two steps that both sides have named differ, in program order.
Status StepError(const Endpoint& endpoint, const std::string& text, const Header& mine,
                 const Header& header);

// What to say when launches of one program have come apart: the one here is not the sender's.
Status SkippedError(const Endpoint& endpoint, const Launch& launch, const Header& header);

// What to say when that launch, of a thread, begins while another one of the endpoint goes on.
Status OverlapError(const Endpoint& endpoint, const std::string& text);

// What to say to one who waits for an operation that this rank has left out.
Status LeftError(const Endpoint& endpoint, const Header& header);

}  // namespace jaxccomp
