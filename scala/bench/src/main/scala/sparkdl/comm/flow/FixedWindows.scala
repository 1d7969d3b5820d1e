// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

/** Windows of fixed size, to compare with the adaptive window. */
object FixedWindows {

  /**
   * Make a scheduler.
   *
   * @param bytes maximum bytes in flight, to all peers together and to each
   */
  private[comm] def scheduler(bytes: Long): TransferScheduler =
    new TransferScheduler(() => new Fixed(bytes))

  private final class Fixed(override val bytes: Long) extends Window {
    override def markLimited(): Unit = ()
  }
}
