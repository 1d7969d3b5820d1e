package sparkdl.comm.flow

/**
 * A block that is wanted. It stands for one wish: two ranks here that want the same bytes make two of them.
 *
 * @param name for messages
 * @param sender the executor that serves it; what is in flight is counted for each
 * @param bytes of all of it, at least 1
 * @param turn
 *   among blocks that are as urgent: how far the rank that serves it comes after the rank that wants it, from 0. Then
 *   ranks that want the same things at the same time begin with different senders
 */
private[comm] class Wanted(
    val name: String,
    val sender: String,
    val bytes: Long,
    val urgency: Urgency,
    val turn: Int
) {
  require(bytes > 0, s"block $name of $sender has $bytes bytes: at least 1")
  override def toString: String = s"$name of $sender, $bytes bytes"
}

/**
 * The smaller, the more urgent: first by `phase`, then by `order`.
 *
 * @param phase a number of [[PhaseNumbers]]
 * @param order within the phase
 */
private[comm] final case class Urgency(phase: Long, order: Int)

/** Ask its sender for so many bytes of a block, from `offset` on. */
private[comm] final class Request private[flow] (val block: Wanted, val offset: Long, val bytes: Int) {

  /** In the window of its sender, and in the one of all senders unless that was given back. */
  private[flow] var ofSender: Flight = _
  private[flow] var ofAll: Option[Flight] = None

  override def toString: String = s"$bytes bytes at $offset of $block"
}
