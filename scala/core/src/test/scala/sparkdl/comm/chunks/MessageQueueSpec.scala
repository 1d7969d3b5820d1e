package sparkdl.comm.chunks

import io.netty.channel.embedded.EmbeddedChannel
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.network.protocol.OneWayMessage

import sparkdl.comm.transport.PeerMessages

class MessageQueueSpec extends AnyFunSuite {
  private def batches(channel: EmbeddedChannel): Seq[Seq[Int]] = {
    channel.runPendingTasks()
    Iterator.continually(channel.readOutbound[OneWayMessage]()).takeWhile(_ != null).toVector.map { sent =>
      Wire.decode(sent.body.nioByteBuffer()) match {
        case Wire.Batch(messages) => messages.map(_.remaining)
        case other => fail(s"$other")
      }
    }
  }

  test("messages that wait travel together, as many as one message may have, and one that need not wait goes at once") {
    val queue = new MessageQueue
    val sizes = Seq(1, 2, 3, PeerMessages.MaxBytes - 100, 50, 200)
    sizes.foreach(size => queue.add(new Array[Byte](size)))
    val channel = new EmbeddedChannel
    queue.opened(channel)
    assert(batches(channel) === Seq(Seq(1, 2, 3, PeerMessages.MaxBytes - 100, 50), Seq(200)))
    queue.add(new Array[Byte](7))
    assert(batches(channel) === Seq(Seq(7)))
    channel.close()
  }
}
