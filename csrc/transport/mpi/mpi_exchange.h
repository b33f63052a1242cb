// Transport::Exchange through MPI.
#pragma once

#include <span>

#include "transport/mpi/mpi_world.h"
#include "transport/transport.h"

namespace jaxccomp {

Transport::Exchanged ExchangeByMpi(const MpiWorld& world, int to, std::span<const Piece> sent,
                                   int from, std::span<const Piece> received,
                                   MpiWorld::Clock::time_point deadline);

}  // namespace jaxccomp
