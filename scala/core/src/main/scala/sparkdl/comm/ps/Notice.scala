package sparkdl.comm.ps

/**
 * Rank `from` tells rank `to` that it published a block: who needs bytes fetches them.
 *
 * @param bytes all of the block, if it fits inline: nothing is fetched then. Empty otherwise
 */
private[comm] final case class Notice(
    job: Long,
    to: Int,
    from: Int,
    kind: Notice.Kind,
    bucket: Int,
    version: Long,
    bytes: Array[Byte]
) {
  def isInline: Boolean = bytes.nonEmpty
}

private[comm] object Notice {
  type Kind = Byte

  /** Parameters of the shard that `from` serves. */
  val Parameters: Kind = 0

  /** The gradients that `from` computed for the shard that `to` serves. */
  val Gradients: Kind = 1

  /** The block is to be fetched. */
  val ToFetch: Array[Byte] = Array.empty
}
