package sparkdl.comm.transport

/** How this executor and the others reach each other. */
trait Transport {

  /** The host name or address under which this JVM is reached. */
  def host: String

  def blocks: Blocks

  /**
   * Opens this executor's own way to be called, on the first free one of `portCount` ports from `firstPort` (0: any). It has
   * Spark's authentication and encryption, as Spark's conf sets them.
   */
  def openControl(firstPort: Int, portCount: Int, receiver: ControlReceiver): ControlPlane
}
