// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import io.netty.buffer.ByteBuf
import io.netty.channel.embedded.EmbeddedChannel
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.network.protocol.{Message, OneWayMessage}

import sparkdl.comm.transport.{MessagePart, PeerMessages}

class MessageQueueSpec extends AnyFunSuite {
  private def batches(channel: EmbeddedChannel): Seq[Seq[Int]] = {
    channel.runPendingTasks()
    Iterator.continually(channel.readOutbound[ByteBuf]()).takeWhile(_ != null).toVector.map {
      sent =>
        assert(sent.readLong() === 8L + sent.readableBytes)
        assert(Message.Type.decode(sent) === Message.Type.OneWayMessage)
        Wire.decode(OneWayMessage.decode(sent).body.nioByteBuffer()) match {
          case Wire.Batch(parts) => parts.map(_.bytes.remaining)
          case other => fail(s"$other")
        }
    }
  }

  private def message(size: Int): MessagePart = MessagePart(0, new Array[Byte](size), 0, size)

  test(
    "waiting messages are batched up to the largest message, and the first one is sent at once"
  ) {
    val queue = new MessageQueue
    val sizes = Seq(1, 2, 3, PeerMessages.MaxBytes - 200, 50, 200)
    sizes.foreach(size => queue.add(message(size), _ => ()))
    val channel = new EmbeddedChannel
    queue.onOpened(channel)
    assert(batches(channel) === Seq(Seq(1, 2, 3, PeerMessages.MaxBytes - 200, 50), Seq(200)))
    queue.add(message(7), _ => ())
    assert(batches(channel) === Seq(Seq(7)))
    channel.close()
  }

  test("the sender of a message learns its confirmation, or the end of the connection") {
    val queue = new MessageQueue
    var known = Vector.empty[(Int, Option[Long])]
    def add(number: Int): Unit = queue.add(message(number), arrived => known :+= number -> arrived)
    (1 to 3).foreach(add)
    assert(!queue.confirm(4, 7) && !queue.confirm(-1, 7) && known.isEmpty, "so many were not sent")
    assert(queue.confirm(2, 7) && known === Vector(1 -> Some(7), 2 -> Some(7)))
    assert(!queue.confirm(1, 8), "more were confirmed before")
    assert(queue.confirm(2, 8) && known.size === 2)
    add(4)
    queue.end()
    add(5)
    assert(known.drop(2) === Vector(3 -> None, 4 -> None, 5 -> None))
    assert(!queue.confirm(3, 9))
  }
}
