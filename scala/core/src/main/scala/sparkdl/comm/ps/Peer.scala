package sparkdl.comm.ps

import sparkdl.comm.transport.BlockServer

/** A rank as the others reach it. */
private[comm] final case class Peer(controlHost: String, controlPort: Int, blocks: BlockServer)
