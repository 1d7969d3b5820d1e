package sparkdl.comm.transport

/** Network and blocks of this executor. */
trait Transport {

  /** Host name or address under which this JVM is reached. */
  def host: String

  def blocks: Blocks

  /**
   * Open this executor's endpoint on the first free one of `portCount` ports from `firstPort` on (0: any). It
   * authenticates and encrypts as Spark's conf says.
   *
   * @throws java.net.BindException if none of the ports is free
   */
  def openNetwork(firstPort: Int, portCount: Int, receiver: PeerMessageReceiver): ChunkNetwork
}
