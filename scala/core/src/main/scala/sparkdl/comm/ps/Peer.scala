package sparkdl.comm.ps

import sparkdl.comm.transport.ChunkPeer

/** A rank as the others reach it. `executor`: Spark's id of the one that it runs on. */
private[comm] final case class Peer(address: ChunkPeer, executor: String)
