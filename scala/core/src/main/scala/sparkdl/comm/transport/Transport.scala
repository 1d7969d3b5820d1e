package sparkdl.comm.transport

/** How this executor and the others reach each other. */
trait Transport {

  /** The host name or address under which this JVM is reached. */
  def host: String

  def blocks: Blocks

  /**
   * Opens this executor's place in the network, on the first free one of `portCount` ports from `firstPort` (0: any). It has
   * Spark's authentication and encryption, as Spark's conf sets them.
   *
   * @throws java.net.BindException if none of the ports is free
   */
  def openNetwork(firstPort: Int, portCount: Int, receiver: PeerMessageReceiver): ChunkNetwork
}
