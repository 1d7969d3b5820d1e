package sparkdl.comm.flow

/** What the window that follows the link is compared with. */
object FixedWindows {

  /** @param bytes that are in flight at most, to all peers together and to each */
  private[comm] def scheduler(bytes: Long): TransferScheduler =
    new TransferScheduler(() => new Fixed(bytes))

  private final class Fixed(override val bytes: Long) extends Window {
    override def held(): Unit = ()
  }
}
