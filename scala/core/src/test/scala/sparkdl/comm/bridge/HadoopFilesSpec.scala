// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import java.nio.file.{Files, Path}

import org.apache.hadoop.conf.Configuration
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.CommException

class HadoopFilesSpec extends AnyFunSuite {
  private val local: Path = Files.createTempDirectory("local")
  private val mounted: Path = Files.createTempDirectory("mounted")
  private val conf = {
    val conf = new Configuration
    conf.set("fs.viewfs.mounttable.cluster.link./data", mounted.toUri.toString)
    conf.set("fs.broken.impl", "org.example.NotThere")
    conf.set("fs.nosdk.impl", classOf[FileSystemWithoutSdk].getName)
    conf
  }
  private val files = new HadoopFiles(conf, () => false)

  private def write(name: String, text: String): String =
    Files.writeString(local.resolve(name), text).toString

  private def refused(parts: String*)(body: => Any): Unit = {
    val error = intercept[CommException](body)
    assert(error.kind === CommException.File)
    parts.foreach(part => assert(error.getMessage.contains(part)))
  }

  Seq(
    "viewfs:" -> "viewfs://cluster/data/v",
    "file:" -> s"${mounted.toUri}f",
    "a plain path" -> s"$mounted/p"
  ).foreach {
    case (kind, root) =>
      test(s"files go to $kind and come back") {
        files.put(write("a", "first, and longer"), s"$root/deep/er/a")
        files.put(write("a", "second"), s"$root/deep/er/a")
        assert(Files.readString(mounted.resolve(s"${root.last}/deep/er/a")) === "second")
        val back = local.resolve("back")
        files.get(s"$root/deep/er/a", back.toString)
        assert(Files.readString(back) === "second")

        files.put(write("b", ""), s"$root/deep/b")
        val entries = files.list(s"$root/deep")
        assert(entries.map(entry => (entry.getPath.getName, entry.isDirectory)) === Seq(
          ("b", false),
          ("er", true)
        ))
        assert(files.list(s"$root/deep/er").map(_.getLen) === Seq(6L))

        files.rename(s"$root/deep", s"$root/moved")
        assert(files.exists(s"$root/moved/er/a") && !files.exists(s"$root/deep"))
        refused(s"$root/moved")(files.delete(s"$root/moved", recursive = false))
        files.delete(s"$root/moved", recursive = true)
        assert(!files.exists(s"$root/moved"))
        files.delete(s"$root/moved", recursive = true)
      }
  }

  test("failures name the path and contain Hadoop's message") {
    val file = write("there", "x")
    val target = mounted.resolve("target").toUri.toString
    files.put(file, target)
    refused("nowhere", "FileNotFoundException")(files.put(s"$local/nowhere", target))
    refused(local.toString)(files.put(local.toString, target))
    refused(s"$target-not", "FileNotFoundException")(files.get(s"$target-not", s"$local/x"))
    refused(s"$target-not", "FileNotFoundException")(files.list(s"$target-not"))
    refused(target, "not a directory")(files.list(target))
    refused(s"$target-not", "FileNotFoundException")(files.rename(s"$target-not", s"$target-2"))
    refused(target, "exists already")(files.rename(file, target))
    refused("Wrong FS")(files.rename(target, "viewfs://cluster/data/x"))
    refused("viewfs://nowhere/x")(files.exists("viewfs://nowhere/x"))
    refused("nosuch://x/y", "nosuch")(files.put(file, "nosuch://x/y"))
    refused("broken://x/y", "NotThere")(files.put(file, "broken://x/y"))
    assert(Files.readString(mounted.resolve("target")) === "x")
  }

  test("a file system without its classes fails the request, not the executor") {
    refused("nosdk://x/y", "NoClassDefFoundError", "com/example/Sdk")(files.exists("nosdk://x/y"))
  }

  test("an abandoned copy ends and leaves nothing") {
    val left = new HadoopFiles(conf, () => true)
    val source = write("left", "x")
    refused("worker left")(left.put(source, mounted.resolve("partial").toUri.toString))
    assert(!Files.exists(mounted.resolve("partial")))
    refused("worker left")(left.get(local.resolve("left").toUri.toString, s"$local/partial"))
    assert(!Files.exists(local.resolve("partial")))
  }
}

/** File system that fails as an object store's connector does without its SDK. */
class FileSystemWithoutSdk extends org.apache.hadoop.fs.RawLocalFileSystem {
  override def initialize(uri: java.net.URI, conf: Configuration): Unit =
    throw new NoClassDefFoundError("com/example/Sdk")
}
